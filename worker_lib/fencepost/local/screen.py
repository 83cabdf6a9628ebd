"""What `fencepost run` prints: a bar while it runs (plain lines without a terminal), tables at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final, TextIO

from fencepost.local.view import Table, View

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

VALUE_CHARACTERS_MIN: Final = 48
NAME_CHARACTERS_MAX: Final = 40
ROWS_SHOWN_MAX: Final = 100
LINE_SECONDS_MIN: Final = 2.0  # between two plain lines of progress
PLAIN_WIDTH: Final = 110
OTHER_COLUMNS_WIDTH: Final = 22  # of outcome and claims, with the gaps between the four columns


def one_line(text: str, size: int) -> str:
    """`text` without line breaks, cut to `size` characters with a sign that it was."""
    flat = " ".join(text.split())
    return flat if len(flat) <= size else f"{flat[: size - 1]}…"


def _room_for_values(table: Table) -> int:
    """What short names leave: an error is worth reading to its end."""
    longest = max((len(row.name) for row in table.rows[:ROWS_SHOWN_MAX]), default=0)
    names = min(max(longest, len("BRANCH")), NAME_CHARACTERS_MAX)
    return max(VALUE_CHARACTERS_MIN, PLAIN_WIDTH - OTHER_COLUMNS_WIDTH - names)


@dataclass(slots=True, kw_only=True)
class Screen:
    """`out` gets results, and progress where it is a terminal; `err` gets what went wrong."""

    out: TextIO
    err: TextIO
    _bar: Progress | None = None
    _bar_tasks: dict[str, TaskID] = field(default_factory=dict)
    _last_line: float = field(default=float("-inf"))
    _last_sentence: str = ""

    def progress(self, view: View) -> None:
        """Show how far the run is."""
        if self.out.isatty():
            self._move_bar(view)
        elif view.sentence != self._last_sentence and (
            view.done or monotonic() - self._last_line >= LINE_SECONDS_MIN
        ):
            self._last_line, self._last_sentence = monotonic(), view.sentence
            self._print(view.sentence)

    def warn(self, sentence: str) -> None:
        """Tell what went wrong; the run goes on, or its exit code says that it does not."""
        if self._bar is not None:
            self._bar.console.print(f"fencepost: {sentence}", markup=False, highlight=False)
        else:
            print(f"fencepost: {sentence}", file=self.err, flush=True)

    def end_progress(self) -> None:
        """Leave the bar as it is and go on below it."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            self._bar_tasks.clear()

    def show(self, tables: Sequence[Table]) -> None:
        """The tables of all jobs and tasks, and the digest of each snapshot."""
        for table in tables:
            if table.kind == "job":
                self._show_job(table)
            else:
                row = table.rows[0]
                value = one_line(row.value, PLAIN_WIDTH)
                self._print(f"task {table.name}: {table.state} (claims: {row.token}) {value}".rstrip())

    def _show_job(self, table: Table) -> None:
        from rich.table import Table as RichTable
        from rich.text import Text

        shown = RichTable(title=None, box=None, pad_edge=False, header_style="bold")
        for header in ("BRANCH", "OUTCOME", "VALUE"):
            shown.add_column(header, no_wrap=True)
        shown.add_column("CLAIMS", justify="right")
        room = _room_for_values(table)
        for row in table.rows[:ROWS_SHOWN_MAX]:
            name, value = one_line(row.name, NAME_CHARACTERS_MAX), one_line(row.value, room)
            shown.add_row(Text(name), Text(row.outcome), Text(value), str(row.token))
        self._console().print(shown)
        if len(table.rows) > ROWS_SHOWN_MAX:
            self._print(f"and {len(table.rows) - ROWS_SHOWN_MAX} more branches")
        self._print(f"job {table.name}: {table.state}; {table.sentence}")
        if table.digest:
            self._print(f"snapshot {table.digest}")

    def _print(self, line: str) -> None:
        print(line, file=self.out, flush=True)

    def _console(self) -> Console:
        from rich.console import Console

        return Console(file=self.out, width=None if self.out.isatty() else PLAIN_WIDTH)

    def _move_bar(self, view: View) -> None:
        """A bar for what the manifest names, and one for each continuation that has begun."""
        self._move(f"{view.unit} settled", view.settled, view.total)
        for item in view.following:
            self._move(f"then {one_line(item.name, NAME_CHARACTERS_MAX)}", item.settled, item.total)

    def _move(self, name: str, settled: int, total: int) -> None:
        if self._bar is None:
            self._bar = self._new_bar()
            self._bar.start()
        if name not in self._bar_tasks:
            self._bar_tasks[name] = self._bar.add_task(name, total=total)
        self._bar.update(self._bar_tasks[name], completed=settled, total=total)

    def _new_bar(self) -> Progress:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        return Progress(*columns, console=self._console())
