"""All checks of all sources, in order."""

from __future__ import annotations

from typing import Final

from tests.conformance import source_000, source_001, source_002
from tests.conformance.checks import Check

ALL: Final[list[Check]] = [*source_000.SUITE.checks, *source_001.SUITE.checks, *source_002.SUITE.checks]
