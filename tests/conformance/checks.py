"""What a check is: one statement of a source, tried on one store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tests.conformance.grounds import API_SERVER, MEMORY, SQLITE, Ground

EVERYWHERE: Final = (MEMORY, SQLITE, API_SERVER)
EMBEDDED: Final = (MEMORY, SQLITE)

Run = Callable[[Ground], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`rule` is the promise or case it belongs to, `says` what is checked. `run` raises `AssertionError`."""

    source: str
    rule: str
    says: str
    stores: tuple[str, ...]
    run: Run

    @property
    def name(self) -> str:
        return f"{self.source} {self.rule}"


class Suite:
    """The checks of one source, in order."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.checks: list[Check] = []

    def check(self, rule: str, says: str, *, stores: Iterable[str] = EVERYWHERE) -> Callable[[Run], Run]:
        """Adds the decorated coroutine function."""

        def add(run: Run) -> Run:
            self.add(rule, says, run, stores=stores)
            return run

        return add

    def add(self, rule: str, says: str, run: Run, *, stores: Iterable[str] = EVERYWHERE) -> None:
        self.checks.append(Check(source=self.source, rule=rule, says=says, stores=tuple(stores), run=run))


def expect(observed: object, expected: object, what: str) -> None:
    """Like the sources' own self-tests: what was expected and what was seen, in one sentence."""
    if observed != expected:
        raise AssertionError(f"{what}: expected {expected}, observed {observed}")
