"""What a run prints, whatever names and values it has to show."""

from __future__ import annotations

import io

from fencepost.local.screen import ROWS_SHOWN_MAX, Screen, one_line
from fencepost.local.view import BranchRow, Item, Table, View


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def view(settled: int, total: int = 4) -> View:
    done = settled == total
    item = Item(name="feed", kind="job", total=total, settled=settled, done=done, failed=False)
    return View(items=(item,), can_go_on=not done)


def table(*rows: BranchRow) -> Table:
    return Table(name="feed", kind="job", state="Succeeded", sentence="all", rows=rows, digest="d" * 64)


def test_without_a_terminal_there_are_lines_and_the_last_one_is_never_left_out() -> None:
    out = io.StringIO()
    screen = Screen(out=out, err=io.StringIO())
    for settled in (0, 1, 2, 3, 4):
        screen.progress(view(settled))
    lines = out.getvalue().splitlines()
    assert lines[0] == "0/4 settled"
    assert lines[-1] == "4/4 settled"
    assert len(lines) == 2  # the others came within the same two seconds


def test_on_a_terminal_there_is_a_bar_and_warnings_go_above_it() -> None:
    out, err = Terminal(), io.StringIO()
    screen = Screen(out=out, err=err)
    screen.progress(view(1))
    screen.warn("worker 0 was killed by SIGKILL [/tmp/x]")
    screen.progress(view(4))
    screen.end_progress()
    shown = out.getvalue()
    assert "1/4" in shown or "4/4" in shown
    assert "worker 0 was killed by SIGKILL [/tmp/x]" in shown
    assert err.getvalue() == ""


def test_names_and_values_are_shown_as_they_are_on_one_line() -> None:
    out = io.StringIO()
    rows = (
        BranchRow(name="[red]あ/b[/red]", outcome="Ok", value="one\ntwo " + "x" * 100, token=1),
        BranchRow(name="n" * 256, outcome="Rejected", value="", token=12),
    )
    Screen(out=out, err=io.StringIO()).show([table(*rows)])
    lines = out.getvalue().splitlines()
    assert lines[0].split() == ["BRANCH", "OUTCOME", "VALUE", "CLAIMS"]
    assert "[red]あ/b[/red]" in lines[1]
    assert "one two x" in lines[1]
    assert "…" in lines[1]
    assert lines[2].split()[-2:] == ["Rejected", "12"]
    assert lines[-2:] == ["job feed: Succeeded; all", f"snapshot {'d' * 64}"]


def test_a_long_table_says_how_much_it_leaves_out() -> None:
    out = io.StringIO()
    rows = tuple(BranchRow(name=f"b{n}", outcome="Ok", value="", token=1) for n in range(ROWS_SHOWN_MAX + 7))
    Screen(out=out, err=io.StringIO()).show([table(*rows)])
    assert "and 7 more branches" in out.getvalue()


def test_a_cut_text_is_exactly_as_long_as_allowed() -> None:
    assert one_line("abc", 3) == "abc"
    assert one_line("abcd", 3) == "ab…"
