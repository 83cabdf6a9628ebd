"""An outbox in a directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.outbox import Outbox
from tests.outbox.given import opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the outbox is."""
    return tmp_path / "outbox.db"


@pytest.fixture
def outbox(path: Path) -> Iterator[Outbox]:
    """A new outbox, closed afterwards."""
    with opened(path) as outbox:
        yield outbox
