from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.protocol import limits
from fencepost.protocol.fencing import NotCanonical, counter_of, holder_name, is_current, next_token, token_of
from tests.protocol.given import HOLDER, NEXT_HOLDER, OUTBOX, held_task, open_task, settled_task

NOT_CANONICAL = ["", "-1", "+1", "01", "00", "1.0", "1e3", " 1", "1 ", "1\n", "0x1", "¹", "١", "NaN", "1_0"]


@given(st.integers(0, limits.FENCING_TOKEN_MAX))
def test_a_token_is_read_from_its_canonical_text(token: int) -> None:
    assert token_of(str(token)) == token


@pytest.mark.parametrize("text", [*NOT_CANONICAL, str(limits.FENCING_TOKEN_MAX + 1), "9" * 17], ids=ascii)
def test_a_token_written_another_way_is_refused(text: str) -> None:
    with pytest.raises(NotCanonical, match="fencing token"):
        token_of(text)


def test_the_greatest_token_and_counter_are_lawful() -> None:
    assert token_of("9007199254740991") == limits.FENCING_TOKEN_MAX
    assert counter_of("999999999") == limits.COUNTER_MAX
    assert counter_of("0") == token_of("0") == 0


@pytest.mark.parametrize("text", [*NOT_CANONICAL, str(limits.COUNTER_MAX + 1)], ids=ascii)
def test_a_counter_written_another_way_is_refused(text: str) -> None:
    with pytest.raises(NotCanonical, match="counter"):
        counter_of(text)


def test_a_holder_is_outbox_and_incarnation() -> None:
    assert holder_name(OUTBOX, "k3j9") == f"{OUTBOX}/k3j9"
    assert limits.text_size(holder_name(OUTBOX, "z" * 64)) <= limits.HOLDER_BYTES_MAX


@pytest.mark.parametrize(
    ("outbox", "incarnation"),
    [
        (OUTBOX.upper(), "a"),
        (OUTBOX, ""),
        (OUTBOX, "a" * 65),
        (OUTBOX, "a/b"),
        (OUTBOX, "a\n"),
        (OUTBOX, "A"),
        ("operator", "a"),
        ("", "a"),
    ],
    ids=ascii,
)
def test_what_is_no_holder_is_refused(outbox: str, incarnation: str) -> None:
    with pytest.raises(NotCanonical, match="no holder"):
        holder_name(outbox, incarnation)


def test_the_next_token_is_one_more() -> None:
    assert next_token(41) == 42


@pytest.mark.parametrize(
    ("token", "holder", "current"),
    [(1, HOLDER, True), (1, NEXT_HOLDER, False), (0, HOLDER, False), (2, HOLDER, False), (1, "", False)],
)
def test_a_lease_is_current_by_token_and_holder(token: int, holder: str, current: bool) -> None:
    assert is_current(held_task(), token=token, holder=holder) is current


def test_nobody_is_the_holder_of_a_free_task() -> None:
    assert not is_current(open_task(), token=0, holder="")


def test_a_settled_task_keeps_the_lease_that_settled_it() -> None:
    assert is_current(settled_task(), token=1, holder=HOLDER)
