"""What a worker did in its life, as one sentence for the log's last line.

The tally counts by verdict and event; its names are for programs. Here each has its words, in the order of
the loop: what was claimed, what came of it, what was let go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import LeaseEnd
from fencepost.worker.releasing import released

NOTHING: Final = "there was nothing to do"

_ENDS: Final = {
    LeaseEnd.SHUTDOWN: "to stop",
    LeaseEnd.ERROR: "after an error",
    LeaseEnd.START: "that an earlier life of this worker held",
    LeaseEnd.UNWANTED: "unexecuted, as nobody wants the result any more",
    LeaseEnd.AFTER_UNKNOWN: "after an unknown outcome",
}
_WORDS: Final[dict[str, tuple[str, str]]] = {
    "claims": ("claim", "claims"),
    "claims lost": ("claim lost to others", "claims lost to others"),
    "leases lost": ("lease lost", "leases lost"),
    "not executed again": ("result found in the outbox", "results found in the outbox"),
}


def summary_of(tally: Mapping[str, int]) -> str:
    """For example `3 claims, 1 accepted, 2 released after an error`."""
    parts = [_counted(number, name) for name, number in _in_order(tally) if number]
    return ", ".join(parts) or NOTHING


def _in_order(tally: Mapping[str, int]) -> list[tuple[str, int]]:
    """Without what another count says already: an end without a result is a release or a lost lease."""
    known = [*_WORDS, *(verdict.value for verdict in Verdict), *(released(end) for end in LeaseEnd)]
    others = [name for name in tally if name not in known and name != "ended without a result"]
    return [(name, tally.get(name, 0)) for name in [*known, *others]]


def _counted(number: int, name: str) -> str:
    if name in _WORDS:
        return f"{number} {_WORDS[name][number != 1]}"
    for end, words in _ENDS.items():
        if name == released(end):
            return f"{number} released {words}"
    return f"{number} {name.lower().replace('_', ' ')}"
