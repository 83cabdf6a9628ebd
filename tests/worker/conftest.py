"""The fixtures of the worker's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.scene import EXECUTED_ALTHOUGH_FORBIDDEN, Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    EXECUTED_ALTHOUGH_FORBIDDEN.clear()
    return Scene(tmp_path)
