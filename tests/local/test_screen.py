"""What a run prints, whatever names and values it has to show."""

from __future__ import annotations

import io

from fencepost.local.screen import ROWS_SHOWN_MAX, Screen, one_line
from fencepost.local.view import BranchRow, Item, Table, View


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def view(settled: int, *following: Item, total: int = 4) -> View:
    done = settled == total
    item = Item(name="feed", kind="job", total=total, settled=settled, done=done, failed=False)
    return View(items=(item, *following), can_go_on=not done)


def total_of_feed(*, done: bool) -> Item:
    return Item(
        name="feed-then", kind="task", total=1, settled=int(done), done=done, failed=False, follows=True
    )


def table(*rows: BranchRow) -> Table:
    return Table(name="feed", kind="job", state="Succeeded", sentence="all", rows=rows, digest="d" * 64)


def test_without_a_terminal_there_are_lines_and_the_last_one_is_never_left_out() -> None:
    out = io.StringIO()
    screen = Screen(out=out, err=io.StringIO())
    for settled in (0, 1, 2, 3, 4):
        screen.progress(view(settled))
    lines = out.getvalue().splitlines()
    assert lines[0] == "0/4 branches settled"
    assert lines[-1] == "4/4 branches settled"
    assert len(lines) == 2  # the others came within the same two seconds


def test_a_continuation_is_counted_apart_so_that_no_total_grows() -> None:
    out, terminal = io.StringIO(), Terminal()
    screen, bar = Screen(out=out, err=io.StringIO()), Screen(out=terminal, err=io.StringIO())
    for one in (view(3), view(4, total_of_feed(done=False)), view(4, total_of_feed(done=True))):
        screen.progress(one)
        bar.progress(one)
    bar.end_progress()
    assert out.getvalue().splitlines() == [
        "3/4 branches settled",
        "4/4 branches settled; then feed-then: settled",  # the one between came within the same two seconds
    ]
    shown = terminal.getvalue()
    assert "branches settled" in shown
    assert "then feed-then" in shown
    assert "5/5" not in out.getvalue() + shown


def test_what_continues_a_job_is_progress_too() -> None:
    before, after = view(4, total_of_feed(done=False)), view(4, total_of_feed(done=True))
    assert (before.settled, after.settled) == (4, 4)
    assert before.sentence == "4/4 branches settled; then feed-then: not settled yet"
    assert after.settled_of_all > before.settled_of_all


def test_tasks_are_called_tasks_and_jobs_that_follow_have_their_own_count() -> None:
    task = Item(name="one", kind="task", total=1, settled=1, done=True, failed=False)
    job = Item(name="more", kind="job", total=8, settled=3, done=False, failed=False, follows=True)
    assert View(items=(task, job), can_go_on=True).sentence == (
        "1/1 tasks settled; then more: 3/8 branches settled"
    )


def test_a_long_error_beside_short_names_is_shown_to_its_end() -> None:
    out = io.StringIO()
    error = "FailuresExhausted: ConnectionError: the upstream said 503 and closed"
    Screen(out=out, err=io.StringIO()).show(
        [table(BranchRow(name="b1", outcome="Rejected", value=error, token=7))]
    )
    assert error in out.getvalue()


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
