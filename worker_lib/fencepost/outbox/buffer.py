"""What is known but not yet written: leases, receipts, tries, parked and dead marks.

They go into the file with the next transaction, so a task costs one commit. That is safe, because losing any
of them in a crash costs a repetition and never a result:

* a lost receipt: the row is still pending, is sent again under its stored key, and is a DUPLICATE with the
  original receipt (IDEM-01);
* a lost park, kill or re-arm: the row is judged again and comes to the same;
* a lost lease step: the server knows the lease. The mark that a claim carries is the last position that was
  *written*, never one that is only here, so the chain that goes on after the crash still has it.

Reads see what is here at once (`standing`), so a drain on a full disk makes progress although it cannot mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fencepost.outbox.rows import Row, columns_of_standing
from fencepost.outbox.statements import query
from fencepost.outbox.writer import Writer
from fencepost.protocol.steps import StepKind

BUFFERED_MAX: Final = 256  # rows held in memory with their values: at most 4 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedStep:
    """A step that waits; `row_id` is the row it accounts for."""

    kind: StepKind
    state: str
    at: str
    row_id: int | None = None


class Buffer:
    """In the order in which it came; the caller has the lock."""

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}
        self._leases: dict[str, dict[str, object]] = {}
        self._steps: list[BufferedStep] = []
        self._covering: set[int] = set()

    def __len__(self) -> int:
        return len(self._rows) + len(self._steps)

    @property
    def is_long(self) -> bool:
        """Time to write, although nothing else is to be written."""
        return len(self._rows) >= BUFFERED_MAX or len(self._steps) >= BUFFERED_MAX

    def standing(self, row: Row) -> Row:
        """The row as it stands now, whatever the file says."""
        return self._rows.get(row.id, row)

    def mark(self, row: Row) -> None:
        """Remember how a row stands."""
        self._rows[row.id] = row

    def is_covered(self, row: Row) -> bool:
        """Whether a step accounts for the row, written or waiting."""
        return row.covered_step is not None or row.id in self._covering

    def add_step(self, step: BufferedStep) -> None:
        """Remember a step; its hash is computed when it is written."""
        self._steps.append(step)
        if step.row_id is not None:
            self._covering.add(step.row_id)

    def add_lease(self, columns: dict[str, object], step: BufferedStep) -> None:
        """Remember the newest lease of a task, and its step."""
        self.add_step(step)
        self._leases[str(columns["uid"])] = columns

    def write_into(self, writer: Writer) -> None:
        """Write all of it; it stays here until the commit has landed (`clear`)."""
        for lease in self._leases.values():
            writer.execute(query("record_lease"), lease)
        for step in self._steps:
            writer.append(step.kind, step.state, at=step.at, row_id=step.row_id)
        for row in self._rows.values():
            writer.execute(query("mark_row"), columns_of_standing(row))

    def clear(self) -> None:
        """Forget what is in the file now."""
        self._rows.clear()
        self._leases.clear()
        self._steps.clear()
        self._covering.clear()
