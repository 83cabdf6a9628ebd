"""Testing kit for workers: a store in memory with a clock that one can move.

`MemoryStore` is a whole store: it judges as the others do and passes the same contract suite. The fixtures of
`fencepost.testing.plugin` are there for every pytest run of an environment that has Fencepost installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencepost.testing.memory import MemoryStore as MemoryStore

__all__ = ["MemoryStore"]


def __getattr__(name: str) -> object:
    """Imported on first use: pytest imports this package at every start."""
    if name == "MemoryStore":
        from fencepost.testing.memory import MemoryStore

        return MemoryStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
