from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.protocol import limits
from fencepost.protocol.fanout import (
    child_name,
    child_task,
    continuation_name,
    is_ours,
    owner_of_children,
    slug,
)
from fencepost.protocol.job import Job
from fencepost.protocol.payload import framed_sha256
from fencepost.protocol.task import ObjectKey, Owner, TaskSpec
from tests.protocol.given import a_job, task_of, with_spec

DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
FROM_THE_FIELD = [
    '"test"',
    '\\"test\\"',
    "test",
    "Test",
    "TEST",
    "あ",
    "い",
    "a/b",
    "a b",
    "a.b",
    "a-b",
    "a--b",
    "\x01",
    "\x7f",
    " ",
    "-",
    "é",
    "e\u0301",
    "a" * 256,
    "x" * 69 + "a",
    "x" * 69 + "b",
    "x" * 19 + "-y",
]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: limits.text_size(name) <= limits.BRANCH_NAME_BYTES_MAX
)
JOB_NAMES = ["a", "j" * 63, "j" * 253, "a.b.c", "9to5", "n" * 99 + "a", "n" * 99 + "b"]


def job_named(name: str, **changes: Any) -> Job:
    return replace(a_job(), key=ObjectKey(namespace="feeds", name=name), **changes)


def test_names_from_the_field_get_children_of_their_own() -> None:
    job = a_job()
    names = [child_name(job, branch) for branch in FROM_THE_FIELD]
    assert len(set(names)) == len(FROM_THE_FIELD)
    for name in names:
        assert DNS_LABEL.fullmatch(name), name


@given(NAMES, NAMES)
def test_every_branch_name_gives_a_dns_label_and_no_two_share_one(one: str, other: str) -> None:
    job = a_job()
    assert DNS_LABEL.fullmatch(child_name(job, one))
    assert (child_name(job, one) == child_name(job, other)) is (one == other)


@pytest.mark.parametrize("name", JOB_NAMES)
def test_every_job_name_gives_dns_labels(name: str) -> None:
    job = job_named(name)
    for branch in FROM_THE_FIELD:
        assert DNS_LABEL.fullmatch(child_name(job, branch))
    assert DNS_LABEL.fullmatch(continuation_name(job))


def test_a_name_is_the_same_for_everybody_for_ever() -> None:
    name = child_name(a_job(), "North Sea/1")
    digest = framed_sha256("fencepost/child/v1", "job-uid-1", "1", "North Sea/1")
    assert name == f"nightly-import-north-sea-1-{digest[:20]}"
    then = framed_sha256("fencepost/continuation/v1", "job-uid-1", "1")
    assert continuation_name(a_job()) == f"nightly-import-then-{then[:20]}"


def test_a_name_depends_on_the_uid_and_the_generation_not_only_on_what_reads_well() -> None:
    job = a_job()
    again = replace(job, uid="job-uid-2")
    assert child_name(job, "north") != child_name(again, "north")
    assert child_name(job, "north") != child_name(job, "north", generation=2)
    assert continuation_name(job) != continuation_name(again)
    assert continuation_name(job) != continuation_name(job, generation=2)
    assert continuation_name(job) not in {child_name(job, branch) for branch in ["", "then", "north"]}


@pytest.mark.parametrize(
    ("text", "readable"),
    [
        ("North Sea/1", "north-sea-1"),
        ("あ", ""),
        ("--a--", "a"),
        ("x" * 30, "x" * 20),
        ("x" * 19 + "-y", "x" * 19),
        ("\u212a", "k"),
    ],
    ids=ascii,
)
def test_a_slug_is_what_can_be_read_of_a_name(text: str, readable: str) -> None:
    assert slug(text) == readable


def test_a_child_is_made_of_the_template_and_its_branch() -> None:
    template = TaskSpec(queue="feeds", priority=7, ttl_seconds_after_finished=60, request='{"ignored":1}')
    job = a_job(template=template)
    child = child_task(job, job.spec.branches[1])
    assert child.branch == "south"
    assert child.key == ObjectKey(namespace="feeds", name=child_name(job, "south"))
    assert child.owner == owner_of_children(job) == Owner(kind="FanOutJob", name=job.key.name, uid=job.uid)
    assert child.spec == replace(template, request='{"branch":"1"}', ttl_seconds_after_finished=None)


def test_a_child_is_ours_by_owner_branch_and_spec() -> None:
    job = a_job()
    wanted = child_task(job, job.spec.branches[0])
    ours = task_of(job, "north")
    assert is_ours(ours, wanted)
    assert is_ours(replace(ours, token=9, failures=3, uid="another"), wanted)
    for stranger in (
        replace(ours, owner=None),
        replace(ours, owner=replace(owner_of_children(job), uid="job-uid-2")),
        replace(ours, branch="south"),
        replace(ours, branch=None),
        with_spec(ours, request='{"branch":"other"}'),
        with_spec(ours, queue="other"),
        with_spec(ours, ttl_seconds_after_finished=5),
        with_spec(ours, external=True),
    ):
        assert not is_ours(stranger, wanted)


def test_a_child_whose_request_cannot_be_read_is_not_the_child_that_asks_for_nothing() -> None:
    job = a_job()
    nothing = replace(job.spec.branches[0], request="{}")
    wanted = child_task(job, nothing)
    ours = with_spec(task_of(job, "north"), request="{}")
    assert is_ours(ours, wanted)
    assert not is_ours(with_spec(ours, request_problem="nested deeper than 64 levels"), wanted)


@pytest.mark.parametrize("change", [{"suspend": True}, {"priority": 0}])
def test_what_a_person_may_change_leaves_a_child_ours(change: dict[str, Any]) -> None:
    job = a_job()
    assert is_ours(with_spec(task_of(job, "north"), **change), child_task(job, job.spec.branches[0]))
