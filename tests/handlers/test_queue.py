"""The queue of keys: deduplicated, one hand a key, delayed by the earliest date, backoff that ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from fencepost_operator.queue import BACKOFF_SECONDS_FIRST, BACKOFF_SECONDS_MAX, WorkQueue
from tests.handlers.values import MovableClock


@asynccontextmanager
async def worked(
    queue: WorkQueue[str], work: Callable[[str], Awaitable[None]], *, hands: int = 2
) -> AsyncIterator[None]:
    running = asyncio.create_task(queue.run(work, hands=hands))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come to that in 10,000 turns of the loop")


async def test_a_key_that_is_added_many_times_is_worked_once() -> None:
    queue: WorkQueue[str] = WorkQueue(clock=MovableClock())
    done: list[str] = []

    async def work(key: str) -> None:
        done.append(key)

    for _ in range(100):
        queue.add("a")
    queue.add("b")
    async with worked(queue, work):
        await until(lambda: len(done) == 2 and len(queue) == 0)
    assert sorted(done) == ["a", "b"]


async def test_a_key_is_in_one_hand_at_a_time_and_worked_again_for_what_came_meanwhile() -> None:
    queue: WorkQueue[str] = WorkQueue(clock=MovableClock())
    go_on = asyncio.Event()
    at_once, worst, rounds = 0, 0, 0

    async def work(key: str) -> None:
        nonlocal at_once, worst, rounds
        at_once += 1
        worst = max(worst, at_once)
        rounds += 1
        await go_on.wait()
        at_once -= 1

    async with worked(queue, work, hands=4):
        queue.add("a")
        await until(lambda: rounds == 1)
        for _ in range(5):
            queue.add("a")
        assert len(queue) == 1
        go_on.set()
        await until(lambda: rounds == 2 and queue.in_work == 0)
    assert worst == 1


async def test_the_earliest_date_counts_and_later_ones_are_forgotten_with_it() -> None:
    clock = MovableClock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    done: list[float] = []

    async def work(key: str) -> None:
        done.append(clock.now)

    queue.add_after("a", 30)
    queue.add_after("a", 10)
    queue.add_after("a", 20)
    assert queue.delayed == 1
    async with worked(queue, work):
        clock.now += 10
        queue.add("other")  # wakes the hands, which then look at the dates
        await until(lambda: len(done) == 2)
        clock.now += 100
        queue.add("other")
        await until(lambda: len(done) == 3)
    assert queue.delayed == 0


async def test_a_delayed_key_is_worked_without_anything_else_happening() -> None:
    loop = asyncio.get_running_loop()
    queue: WorkQueue[str] = WorkQueue(clock=loop.time)
    done = asyncio.Event()

    async def work(key: str) -> None:
        done.set()

    async with worked(queue, work):
        await asyncio.sleep(0)
        began = loop.time()
        queue.add_after("a", 0.05)
        async with asyncio.timeout(2):
            await done.wait()
    assert loop.time() - began >= 0.05


def test_a_failing_key_waits_twice_as_long_each_time_up_to_a_minute() -> None:
    queue: WorkQueue[str] = WorkQueue(clock=MovableClock())
    pauses = [queue.add_after_failure("a") for _ in range(12)]
    assert pauses[:4] == [BACKOFF_SECONDS_FIRST * factor for factor in (1, 2, 4, 8)]
    assert pauses[-1] == BACKOFF_SECONDS_MAX
    assert queue.add_after_failure("b") == BACKOFF_SECONDS_FIRST
    queue.succeeded("a")
    assert queue.add_after_failure("a") == BACKOFF_SECONDS_FIRST
    assert queue.add_after_failure("c", at_least=7.0) == 7.0


async def test_a_forgotten_key_is_not_worked_when_its_date_comes() -> None:
    clock = MovableClock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    done: list[str] = []

    async def work(key: str) -> None:
        done.append(key)

    queue.add_after("gone", 5)
    queue.forget("gone")
    clock.now += 60
    queue.add("there")
    async with worked(queue, work):
        await until(lambda: bool(done) and queue.in_work == 0)
    assert done == ["there"]


@pytest.mark.parametrize("hands", [1, 5])
async def test_no_more_hands_than_allowed_and_all_of_them_used(hands: int) -> None:
    queue: WorkQueue[str] = WorkQueue(clock=MovableClock())
    at_once, worst = 0, 0
    full = asyncio.Event()

    async def work(key: str) -> None:
        nonlocal at_once, worst
        at_once += 1
        worst = max(worst, at_once)
        if at_once == hands:
            full.set()
        await full.wait()
        at_once -= 1

    for number in range(20):
        queue.add(str(number))
    async with worked(queue, work, hands=hands):
        await until(lambda: len(queue) == 0 and queue.in_work == 0)
    assert worst == hands
