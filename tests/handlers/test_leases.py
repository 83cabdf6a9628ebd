"""How long a lease stood unchanged: by one observer's own clock, and afresh after any change (cases B10)."""

from __future__ import annotations

from dataclasses import replace

from fencepost.protocol import lease, upkeep
from fencepost.protocol.mutation import Revoke
from fencepost.protocol.task import Hold, State
from fencepost_operator.leases import LeaseObserver
from tests.handlers.values import a_task, claimed, in_backoff, settled


def test_the_first_look_starts_the_count_whatever_the_worker_wrote() -> None:
    task = replace(claimed(a_task()), acquired_at="2020-01-01T00:00:00Z", renewed_at="2099-01-01T00:00:00Z")
    observer = LeaseObserver()
    assert observer.unchanged_seconds(task, now=50.0) == 0.0
    assert observer.unchanged_seconds(task, now=57.5) == 7.5


def test_a_heartbeat_starts_it_again_even_with_equal_times() -> None:
    task = claimed(a_task())
    observer = LeaseObserver()
    observer.unchanged_seconds(task, now=0.0)
    beaten = lease.renewed(task, at=task.renewed_at, progress=None)
    assert observer.unchanged_seconds(beaten, now=30.0) == 0.0
    assert observer.unchanged_seconds(beaten, now=31.0) == 1.0


def test_a_new_version_alone_is_no_change_of_the_lease() -> None:
    task = claimed(a_task())
    observer = LeaseObserver()
    observer.unchanged_seconds(task, now=0.0)
    labelled = replace(task, version="99", progress="half")
    assert observer.unchanged_seconds(labelled, now=30.0) == 30.0


def test_another_token_another_uid_and_another_hold_are_changes() -> None:
    task = claimed(a_task())
    for changed in (
        replace(task, token=task.token + 1),
        replace(task, uid="another"),
        replace(task, hold=Hold.BACKOFF),
    ):
        observer = LeaseObserver()
        observer.unchanged_seconds(task, now=0.0)
        assert observer.unchanged_seconds(changed, now=9.0) == 0.0


def test_what_nobody_holds_is_not_remembered() -> None:
    observer = LeaseObserver()
    for task in (a_task(), settled(a_task())):
        observer.unchanged_seconds(claimed(a_task()), now=0.0)
        assert observer.unchanged_seconds(task, now=9.0) == 0.0
        assert len(observer) == 0
    observer.unchanged_seconds(in_backoff(a_task()), now=0.0)
    observer.forget("ns", "task")
    assert len(observer) == 0


def test_a_lease_is_revoked_after_its_duration_and_not_before() -> None:
    task = claimed(a_task(lease_duration_seconds=60))
    observer = LeaseObserver()
    observer.unchanged_seconds(task, now=0.0)

    def decision(now: float) -> upkeep.Decision:
        unchanged = observer.unchanged_seconds(task, now=now)
        return upkeep.decide(task, upkeep.Ages(lease_unchanged=unchanged), recorded_by="operator")

    assert isinstance(decision(59.9), upkeep.Wait)
    ended = decision(60.01)
    assert isinstance(ended, upkeep.Act)
    assert isinstance(ended.mutation, Revoke)
    assert (ended.mutation.token, ended.mutation.state) == (task.token, State.OPEN)
