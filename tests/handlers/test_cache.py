"""The cache: no source takes it back in time, children are told by name, and what is kept is small."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from fencepost.protocol import join
from fencepost.protocol.job import Job
from fencepost.protocol.join import Standing
from fencepost.protocol.receipt import verify_chain
from fencepost.protocol.task import ObjectKey, Owner
from fencepost_operator.cache import AWAIT_EVENT_SECONDS, REMEMBER_GONE_SECONDS, Cache
from fencepost_operator.slim import SHORT_CHARACTERS, short
from tests.handlers.values import MovableClock, a_job, a_task, child_of, claimed, moved, settled

KEY = ObjectKey(namespace="ns", name="task")


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def cache(clock: MovableClock) -> Cache:
    return Cache(clock=clock)


def recorded(job: Job, *names: str) -> Job:
    """The job with these branches recorded, as the join would."""
    children = {
        branch.name: join.Child(
            branch=branch, standing=Standing.OURS, task=settled(child_of(job, branch.name))
        )
        for branch in job.spec.branches
        if branch.name in names
    }
    records = {name: join.record_of(child.task, room=1000) for name, child in children.items() if child.task}
    return replace(job, status=replace(job.status, branches=MappingProxyType(records)))


class TestNoWayBackInTime:
    def test_the_same_version_twice_is_no_news(self, cache: Cache) -> None:
        assert cache.task_event(a_task())
        assert not cache.task_event(a_task())

    def test_an_event_from_before_our_write_is_passed_over(self, cache: Cache, clock: MovableClock) -> None:
        cache.task_event(a_task(version="1"))
        clock.now += 1
        written = claimed(a_task(), version="3")
        assert cache.task_answer(written, asked=clock.now, written=True)
        assert not cache.task_event(a_task(version="2"))
        assert cache.task(KEY) is not None
        assert cache.task(KEY).version == "3"
        assert not cache.task_event(written)  # the event of the write itself
        assert cache.task_event(a_task(version="4"))  # and from then on all count

    def test_a_newer_one_is_taken_though_the_event_of_our_write_never_came(
        self, cache: Cache, clock: MovableClock
    ) -> None:
        cache.task_answer(claimed(a_task(), version="9"), asked=clock.now, written=True)
        assert cache.task_event(a_task(version="10"))

    @pytest.mark.parametrize("versions", [("300", "4"), ("x", "y")])
    def test_where_versions_do_not_tell_it_blinds_for_seconds_only(
        self, cache: Cache, clock: MovableClock, versions: tuple[str, str]
    ) -> None:
        cache.task_answer(claimed(a_task(), version=versions[0]), asked=clock.now, written=True)
        assert not cache.task_event(a_task(version=versions[1]))
        clock.now += AWAIT_EVENT_SECONDS
        assert cache.task_event(a_task(version=versions[1]))

    def test_an_answer_that_an_event_has_overtaken_is_not_taken(
        self, cache: Cache, clock: MovableClock
    ) -> None:
        asked = clock.now
        clock.now += 1
        cache.task_event(claimed(a_task(), version="9"))
        assert not cache.task_answer(a_task(version="1"), asked=asked, written=False)
        assert not cache.task_gone(KEY, asked=asked)
        assert cache.task(KEY) is not None

    def test_an_answer_does_not_bring_back_what_was_deleted_meanwhile(
        self, cache: Cache, clock: MovableClock
    ) -> None:
        cache.task_event(a_task())
        asked = clock.now
        clock.now += 1
        assert cache.task_gone(KEY, uid="task-uid")
        assert not cache.task_answer(a_task(version="2"), asked=asked, written=True)
        clock.now += REMEMBER_GONE_SECONDS + 1
        assert cache.task_answer(a_task(uid="new", version="3"), asked=clock.now, written=False)

    def test_another_object_of_the_name_is_taken_and_an_old_deletion_is_not(self, cache: Cache) -> None:
        cache.task_event(a_task(uid="first"))
        assert cache.task_event(a_task(uid="second", version="5"))
        assert not cache.task_gone(KEY, uid="first")
        assert cache.task(KEY) is not None

    def test_a_whole_list_is_asked_for_what_nothing_has_touched_since(
        self, cache: Cache, clock: MovableClock
    ) -> None:
        cache.task_event(a_task("old"))
        clock.now += 1
        asked = clock.now
        clock.now += 1
        cache.task_event(a_task("new", uid="other"))
        tasks, _ = cache.not_touched_since(asked)
        assert [key.name for key in tasks] == ["old"]


class TestChildren:
    def test_unseen_ours_and_stranger(self, cache: Cache) -> None:
        job = a_job("a", "b", "c")
        cache.job_event(job, ())
        cache.task_event(child_of(job, "a"))
        stranger = Owner(kind="FanOutJob", name="job", uid="somebody-else")
        cache.task_event(replace(child_of(job, "b"), owner=stranger))
        seen = cache.job(job.key)
        assert seen is not None
        children = cache.children(seen)
        assert [children[name].standing for name in "abc"] == [
            Standing.OURS,
            Standing.STRANGER,
            Standing.UNSEEN,
        ]

    def test_another_request_makes_a_stranger_even_where_only_the_hash_is_kept(self, cache: Cache) -> None:
        long = "x" * 10 * SHORT_CHARACTERS
        job = a_job("a")
        job = replace(
            job,
            spec=replace(job.spec, branches=(replace(job.spec.branches[0], request=f'{{"v":"{long}"}}'),)),
        )
        cache.job_event(job, ())
        right = child_of(job, "a")
        for task, standing in (
            (right, Standing.OURS),
            (
                replace(right, version="2", spec=replace(right.spec, request=f'{{"v":"{long}y"}}')),
                Standing.STRANGER,
            ),
        ):
            cache.task_event(task)
            seen = cache.job(job.key)
            assert seen is not None
            assert cache.children(seen)["a"].standing is standing

    def test_an_unreadable_object_under_the_name_is_a_stranger(self, cache: Cache) -> None:
        job = a_job("a")
        cache.job_event(job, ())
        cache.unreadable_task(child_of(job, "a").key, uid="u", version="1")
        seen = cache.job(job.key)
        assert seen is not None
        assert cache.children(seen)["a"].standing is Standing.STRANGER

    @pytest.mark.parametrize("tasks_first", [True, False])
    def test_open_is_empty_exactly_when_all_are_settled_or_recorded(
        self, cache: Cache, tasks_first: bool
    ) -> None:
        job = recorded(a_job("a", "b", "c"), "a")
        steps = [lambda: cache.job_event(job, ())]
        steps += [lambda name=name: cache.task_event(settled(child_of(job, name))) for name in "abc"]
        for step in reversed(steps) if tasks_first else steps:
            step()
        seen = cache.job(job.key)
        assert seen is not None
        assert seen.open == set()
        cache.task_gone(child_of(job, "a").key, uid="uid-of-a")
        assert seen.open == set()  # it is recorded
        cache.task_gone(child_of(job, "b").key, uid="uid-of-b")
        assert seen.open == {child_of(job, "b").key.name}

    def test_a_settled_task_of_another_owner_does_not_close_a_branch(self, cache: Cache) -> None:
        job = a_job("a")
        cache.job_event(job, ())
        cache.task_event(replace(settled(child_of(job, "a")), owner=None))
        seen = cache.job(job.key)
        assert seen is not None
        assert len(seen.open) == 1

    def test_a_job_that_was_made_again_has_other_children(self, cache: Cache) -> None:
        cache.job_event(a_job("a"), ())
        old = child_of(a_job("a"), "a").key.name
        cache.job_event(a_job("a", uid="again", version="7"), ())
        assert cache.job_of("ns", old) is None
        assert cache.job_of("ns", child_of(a_job("a", uid="again"), "a").key.name) is not None
        assert cache.job_gone(ObjectKey(namespace="ns", name="job"), uid="again")
        assert cache.job_count == 0

    def test_what_is_remembered_of_a_job_survives_its_next_version(self, cache: Cache) -> None:
        cache.job_event(a_job(), ())
        first = cache.job(a_job().key)
        cache.job_event(a_job(version="2"), ())
        second = cache.job(a_job().key)
        assert first is not None
        assert second is not None
        assert second.memory is first.memory


class TestWhatIsKept:
    def test_short_texts_stay_and_long_ones_become_a_hash(self) -> None:
        assert short("x" * SHORT_CHARACTERS) == "x" * SHORT_CHARACTERS
        assert short("x" * (SHORT_CHARACTERS + 1)) != short("x" * (SHORT_CHARACTERS + 2))
        assert len(short("x" * 100_000)) < 80

    def test_values_are_kept_until_the_branch_is_recorded(self, cache: Cache) -> None:
        job = a_job("a", "b")
        child = settled(child_of(job, "a"), "v" * 5000)
        cache.job_event(job, ())
        cache.task_event(child)
        kept = cache.task(child.key)
        assert kept is not None
        verify_chain(kept)  # would raise without the value
        cache.job_event(replace(recorded(job, "a"), version="2"), ())
        kept = cache.task(child.key)
        assert kept is not None
        assert [receipt.value for receipt in kept.receipts] == [""]
        assert kept.receipts[0].receipt_sha256 == child.receipts[0].receipt_sha256

    def test_a_task_that_is_nobodys_child_keeps_no_values(self, cache: Cache) -> None:
        cache.task_event(settled(a_task(request='{"r":"' + "x" * 1000 + '"}'), "v" * 5000))
        kept = cache.task(KEY)
        assert kept is not None
        assert len(repr(kept)) < 2500

    def test_the_state_that_upkeep_decides_on_is_kept_whole(self, cache: Cache) -> None:
        task = moved(claimed(a_task(lease_duration_seconds=7, active_deadline_seconds=9)), "5")
        cache.task_event(task)
        kept = cache.task(KEY)
        assert kept is not None
        for field in ("uid", "token", "holder", "renewals", "hold", "failures", "state", "created_at"):
            assert getattr(kept, field) == getattr(task, field)
        assert kept.spec == task.spec
