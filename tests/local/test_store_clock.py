"""The store's time when somebody sets the wall clock, and when the machine is started again."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.local.store import LocalStore
from fencepost.local.store_clock import Mark, Reading, boot_id, boottime_seconds, store_time
from fencepost.ports import Applied, NewTask
from fencepost.protocol.task import ObjectKey, RetryPolicy, State, Task, TaskSpec
from fencepost.testing.memory import NOON
from tests.contract.acting import Actor

YEAR = 365 * 86400.0
LEASE = 60
SPEC = TaskSpec(
    queue="feeds",
    lease_duration_seconds=LEASE,
    active_deadline_seconds=3600,
    retry_policy=RetryPolicy(backoff_base_seconds=1, backoff_max_seconds=1),
)


class Machine:
    """One machine with a store file: its wall clock may be set, it may be started again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wall = NOON
        self.since_start = 5000.0
        self.boot = "first"
        self.opened: list[LocalStore] = []

    def store(self) -> LocalStore:
        """A store as a process opens it that starts now."""
        self.opened.append(
            LocalStore(self.path, clock=lambda: self.wall, boottime=lambda: self.since_start, boot=self.boot)
        )
        return self.opened[-1]

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.since_start += seconds

    def start_again(self, after: float) -> LocalStore:
        self.pass_time(after)
        self.since_start, self.boot = 3.0, "second"
        return self.store()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "store.db")
    yield made
    for store in made.opened:
        store.close_now()


async def claimed(store: LocalStore) -> Task:
    answer = await store.create(NewTask(key=ObjectKey(namespace="default", name="a"), spec=SPEC))
    assert isinstance(answer, Applied)
    return await (await Actor.of(store)).claim(answer.task.key)


async def looked_at(store: LocalStore, held: Task) -> Task:
    """As it is, after a write that stores the time."""
    name = f"witness-{len(await store.tasks())}"
    await store.create(NewTask(key=ObjectKey(namespace="default", name=name), spec=SPEC))
    task = await store.task(held.key)
    assert task is not None
    return task


@pytest.mark.parametrize("jump", [YEAR, -YEAR, 2.0])
async def test_a_wall_clock_that_is_set_ends_no_lease_and_no_deadline(machine: Machine, jump: float) -> None:
    held = await claimed(machine.store())
    machine.wall += jump
    machine.pass_time(LEASE - 1)
    task = await looked_at(machine.store(), held)
    assert (task.holder, task.state) == (held.holder, State.OPEN)


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
async def test_a_wall_clock_that_was_set_and_set_back_makes_no_lease_longer(
    machine: Machine, jump: float
) -> None:
    store = machine.store()
    machine.wall += jump
    await store.create(NewTask(key=ObjectKey(namespace="default", name="seen-in-the-jump"), spec=SPEC))
    machine.wall -= jump
    held = await claimed(store)
    machine.pass_time(LEASE + 1)
    for seen in (machine.store(), store):
        assert (await looked_at(seen, held)).holder == ""


async def test_the_jump_is_not_counted_when_the_file_is_made_in_it_either(machine: Machine) -> None:
    machine.wall += YEAR
    held = await claimed(machine.store())
    machine.wall -= YEAR
    machine.pass_time(LEASE + 1)
    assert (await looked_at(machine.store(), held)).holder == ""


async def test_the_machines_sleep_counts(machine: Machine) -> None:
    store = machine.store()
    held = await claimed(store)
    machine.pass_time(7200)
    task = await looked_at(store, held)
    assert task.state is State.FAILED  # its deadline was an hour


async def test_over_a_restart_the_wall_clock_counts_and_is_told(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    held = await claimed(machine.store())
    with caplog.at_level(logging.WARNING, "fencepost"):
        store = machine.start_again(after=LEASE + 1)
        assert (await looked_at(store, held)).holder == ""
    assert [record.message for record in caplog.records if "61 s have passed" in record.message]


async def test_over_a_restart_time_does_not_go_back_and_then_goes_on(machine: Machine) -> None:
    """A machine without a clock of its own starts in 1970 and is set right later."""
    held = await claimed(machine.store())
    machine.wall = 0.0
    store = machine.start_again(after=1)
    assert (await looked_at(store, held)).holder == held.holder
    machine.wall = NOON + YEAR
    machine.pass_time(LEASE - 1)
    assert (await looked_at(machine.store(), held)).holder == held.holder
    machine.pass_time(2)
    assert (await looked_at(store, held)).holder == ""


async def test_a_look_after_a_restart_is_enough_to_distrust_the_wall_clock_again(machine: Machine) -> None:
    held = await claimed(machine.store())
    store = machine.start_again(after=1)
    await store.tasks()  # changes nothing
    machine.wall += YEAR
    assert (await looked_at(store, held)).holder == held.holder


async def test_a_file_of_the_version_before_is_read_and_its_time_goes_on(machine: Machine) -> None:
    held = await claimed(machine.store())
    machine.opened.pop().close_now()
    with sqlite3.connect(machine.path) as connection:  # as version 1 made it, its time a year ahead
        connection.executescript(
            "DROP TABLE clock;"
            "CREATE TABLE clock (one INTEGER PRIMARY KEY CHECK (one = 1), latest REAL NOT NULL);"
            f"INSERT INTO clock VALUES (1, {NOON + YEAR}); UPDATE tasks SET since = {NOON + YEAR};"
            "PRAGMA user_version = 1;"
        )
    store = machine.store()
    machine.pass_time(1)
    assert (await Actor.of(store)).account == held.account
    assert (await looked_at(store, held)).state is State.FAILED  # the deadline: created a year before


def test_a_boot_clock_behind_the_mark_is_another_start_also_without_a_name() -> None:
    mark = Mark(time=100.0, reading=Reading(wall=1000.0, boottime=50.0, boot=""))
    assert store_time(mark, Reading(wall=9999.0, boottime=51.5, boot="")) == 101.5
    assert store_time(mark, Reading(wall=1007.0, boottime=2.0, boot="")) == 107.0
    assert store_time(mark, Reading(wall=1.0, boottime=2.0, boot="")) == 100.0


def test_this_machine_has_a_boot_clock_and_names_its_start() -> None:
    first, name = boottime_seconds(), boot_id()
    assert 0 < first <= boottime_seconds()
    assert name == boot_id()
