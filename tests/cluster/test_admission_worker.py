"""What a worker may do, and that it can do nothing else, whatever it sends and whether it compares or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fencepost.kube.patches import Part
from fencepost.protocol.lease import ENDED_BY_WORKER, LEASE_ENDS
from fencepost.protocol.task import LeaseEnd, State, Task
from tests.cluster.admission_world import (
    HOLDERS,
    Try,
    World,
    and_then,
    annotated,
    annotation,
    label,
    labelled,
    main_merge,
    merged,
    operations,
    ours,
    patch_of,
    refuse,
    removing,
    setting,
    without_tests,
    world,
)

__all__ = ["world"]

NOT_HOLDER = f"not the holder: token 1 is held by {HOLDERS['w1']}"
SPEC_STAYS = "a worker may not change spec, owners or finalizers"
OWNER = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "name": "gone",
    "uid": "00000000-0000-4000-8000-000000000000",
}

CLAIM_TRIES = [
    Try(
        name=f"a claim {name}",
        on=World.free,
        who="w1",
        write=lambda world, task, change=change: change(patch_of(world.claim(task))),
        refused=refused,
        or_else="last-lease changes only when a lease ends",
    )
    for name, change, refused in (
        (
            "that counts a failure",
            lambda p: annotated(p, failures="1"),
            "a claim leaves failures and last-lease",
        ),
        (
            "that writes last-lease",
            lambda p: annotated(p, last_lease=f"0 {HOLDERS['w1']} error"),
            "a claim leaves failures and last-lease",
        ),
        (
            "with a label",
            lambda p: merged(p, metadata={"labels": {"team": "x"}}),
            "a worker changes no labels",
        ),
        (
            "with an annotation",
            lambda p: merged(p, metadata={"annotations": {"team": "x"}}),
            "a worker changes no annotations but",
        ),
        (
            "with an unknown annotation of ours",
            lambda p: annotated(p, anything="x"),
            "a worker changes no annot",
        ),
        ("with another label of ours", lambda p: labelled(p, anything="x"), "a worker changes no labels"),
        ("that changes the priority", lambda p: merged(p, spec={"priority": 9}), SPEC_STAYS),
        ("that suspends", lambda p: merged(p, spec={"suspend": True}), SPEC_STAYS),
        ("with a finalizer", lambda p: merged(p, metadata={"finalizers": ["me/x"]}), SPEC_STAYS),
        ("with an owner", lambda p: merged(p, metadata={"ownerReferences": [OWNER]}), SPEC_STAYS),
    )
]


@pytest.mark.parametrize("row", CLAIM_TRIES, ids=str)
def test_a_claim_changes_nothing_but_the_lease(world: World, row: Try) -> None:
    row.run(world)


def test_a_claim_that_unsuspends_is_refused(world: World) -> None:
    Try(
        name="a claim that unsuspends",
        on=lambda world: world.free(suspend=True),
        who="w1",
        write=lambda world, task: merged(patch_of(world.claim(task)), spec={"suspend": False}),
        refused="not claimable: suspended",
        or_else=SPEC_STAYS,
    ).run(world)


HEARTBEAT = "a heartbeat sets renewals to 1, renewed-at and progress, and nothing else"

HEARTBEAT_TRIES = [
    Try(name="a heartbeat", on=World.held, who="w1", write=lambda w, t: patch_of(w.heartbeat(t))),
    Try(
        name="a heartbeat with the longest progress",
        on=World.held,
        who="w1",
        write=lambda w, t: patch_of(w.heartbeat(t, "é" * 512)),
    ),
    Try(
        name="a heartbeat in Unknown",
        on=lambda world: world.unknown(held=True),
        who="w1",
        write=lambda w, t: patch_of(w.heartbeat(t)),
    ),
    *(
        Try(
            name=f"a heartbeat {name}",
            on=World.held,
            who="w1",
            write=lambda world, task, steps=steps: and_then(patch_of(world.heartbeat(task)), *steps),
            refused=refused,
            or_else=HEARTBEAT,
        )
        for name, steps, refused in (
            ("of two renewals", [setting(annotation("renewals"), "2")], HEARTBEAT),
            ("without a renewal", [setting(annotation("renewals"), "0")], HEARTBEAT),
            (
                "with garbage",
                [setting(annotation("renewals"), "x")],
                "renewals and failures are whole numbers",
            ),
            ("too many", [setting(annotation("renewals"), "9" * 10)], "renewals and failures are whole"),
            ("that changes the holder", [setting(annotation("holder"), HOLDERS["w2"])], "only with a claim"),
            ("that changes the account", [setting(annotation("holder-account"), "x")], "only with a claim"),
            ("that changes the hold", [setting(label("hold"), "Backoff")], "come and go together"),
            ("that counts a failure", [setting(annotation("failures"), "1")], HEARTBEAT),
            ("with a new mark", [setting(annotation("outbox-mark"), "9 x")], "only with a claim"),
            ("with another beginning", [setting(annotation("acquired-at"), "x")], "only with a claim"),
            ("without its beginning", [removing(annotation("acquired-at"))], HEARTBEAT),
            ("with 1025 bytes of progress", [setting(annotation("progress"), "x" * 1025)], "at most 1024"),
            ("with a label", [setting("/metadata/labels/team", "x")], "a worker changes no labels"),
            ("with a finalizer", [setting("/metadata/finalizers", ["me/x"])], SPEC_STAYS),
            ("with a priority", [setting("/spec/priority", 9)], SPEC_STAYS),
        )
    ),
    Try(
        name="a heartbeat of what w1 holds",
        on=World.held,
        who="w2",
        write=lambda world, task: patch_of(world.heartbeat(task)),
        refused=NOT_HOLDER,
        status=403,
    ),
    Try(
        name="a heartbeat of a free task",
        on=World.released,
        who="w1",
        write=lambda world, task: main_merge({"annotations": ours(renewals="1")}),
        refused="not the holder: token 1 is held by nobody",
        status=403,
    ),
    Try(
        name="a heartbeat after a revoke, that compares nothing",
        on=World.revoked,
        who="w1",
        write=lambda world, task: without_tests(patch_of(world.heartbeat(task))),
        refused="not the holder: token 1 is held by nobody",
        status=403,
    ),
    Try(
        name="a heartbeat of a settled task",
        on=World.settled,
        who="w1",
        write=lambda world, task: without_tests(patch_of(world.heartbeat(task))),
        refused="the task is settled",
    ),
    Try(
        name="the end of a hold without a claim",
        on=lambda world: world.released(LeaseEnd.ERROR),
        who="w1",
        write=lambda world, task: patch_of(world.requeue(task)),
        refused="not the holder",
        status=403,
    ),
]


@pytest.mark.parametrize("row", HEARTBEAT_TRIES, ids=str)
def test_a_heartbeat_renews_what_is_its_own(world: World, row: Try) -> None:
    row.run(world)


def standing_in(state: State) -> Any:
    return World.held if state is State.OPEN else lambda world: world.unknown(held=True)


WRONG_END = "a worker ends its lease as one of after-unknown, error, shutdown, start, unwanted"

RELEASE_TRIES = [
    *(
        Try(
            name=f"release in {state.value} as {end.value}",
            on=standing_in(state),
            who="w1",
            write=lambda world, task, end=end: patch_of(world.release(task, end, "why\nso")),
        )
        for state, end in LEASE_ENDS
        if end in ENDED_BY_WORKER
    ),
    *(
        Try(
            name=f"release in {state.value} as {end.value}",
            on=standing_in(state),
            who="w1",
            write=lambda world, task, end=end: and_then(
                without_tests(patch_of(world.release(task, LeaseEnd.ERROR))),
                setting(annotation("last-lease"), f"1 {HOLDERS['w1']} {end.value}"),
            ),
            refused=WRONG_END,
            or_else=f"no lease ends as {end.value}",
        )
        for state, end in LEASE_ENDS
        if end not in ENDED_BY_WORKER
    ),
    *(
        Try(
            name=f"release {name}",
            on=on,
            who="w1",
            write=lambda world, task, end=end, steps=steps: and_then(
                without_tests(patch_of(world.release(task, end))), *steps
            ),
            refused=refused,
            or_else="a claim leaves failures and last-lease" if "drops the token" in name else WRONG_END,
        )
        for name, on, end, steps, refused in (
            (
                "without last-lease",
                World.held,
                LeaseEnd.ERROR,
                [removing(annotation("last-lease"))],
                "last-lease names the lease that ends",
            ),
            (
                "after an error that does not count",
                World.held,
                LeaseEnd.ERROR,
                [removing(annotation("failures"))],
                "leaves hold=Backoff and failures=1",
            ),
            (
                "after an error that counts five",
                World.held,
                LeaseEnd.ERROR,
                [setting(annotation("failures"), "5")],
                "leaves hold=Backoff and failures=1",
            ),
            (
                "after an error without a hold",
                World.held,
                LeaseEnd.ERROR,
                [removing(label("hold"))],
                "leaves hold=Backoff and failures=1",
            ),
            (
                "at shutdown that counts",
                World.held,
                LeaseEnd.SHUTDOWN,
                [setting(annotation("failures"), "1")],
                "leaves no hold and failures=0",
            ),
            (
                "at shutdown with hold=Unknown",
                World.held,
                LeaseEnd.SHUTDOWN,
                [setting(label("hold"), "Unknown")],
                "leaves no hold and failures=0",
            ),
            (
                "that keeps hold=Leased",
                World.held,
                LeaseEnd.ERROR,
                [setting(label("hold"), "Leased")],
                "come and go together",
            ),
            (
                "with hold=Waiting",
                World.held,
                LeaseEnd.ERROR,
                [setting(label("hold"), "Waiting")],
                "leaves hold=Backoff",
            ),
            (
                "that keeps the account",
                World.held,
                LeaseEnd.ERROR,
                [setting(annotation("holder-account"), "system:serviceaccount:x:y")],
                "change only with a claim",
            ),
            (
                "that keeps the outbox",
                World.held,
                LeaseEnd.ERROR,
                [setting(label("outbox"), HOLDERS["w1"][:36])],
                "come and go together",
            ),
            (
                "that drops the token",
                World.held,
                LeaseEnd.ERROR,
                [removing(annotation("fencing-token"))],
                "the fencing token 1 may not be removed",
            ),
            (
                "in Unknown without a hold",
                lambda world: world.unknown(held=True),
                LeaseEnd.SHUTDOWN,
                [removing(label("hold"))],
                "leaves hold=Unknown and failures=0",
            ),
            (
                "in Unknown with hold=Backoff",
                lambda world: world.unknown(held=True),
                LeaseEnd.ERROR,
                [setting(label("hold"), "Backoff")],
                "leaves hold=Unknown and failures=1",
            ),
            (
                "that names another token",
                World.held,
                LeaseEnd.ERROR,
                [setting(annotation("last-lease"), f"2 {HOLDERS['w1']} error")],
                f"last-lease names the lease that ends: 1 {HOLDERS['w1']} END",
            ),
            (
                "with a word that hides another",
                World.held,
                LeaseEnd.ERROR,
                [setting(annotation("last-lease"), f"1 {HOLDERS['w1']} errors")],
                "no lease ends as errors in state Open",
            ),
            (
                "with 1025 bytes of last-lease",
                World.held,
                LeaseEnd.ERROR,
                [setting(annotation("last-lease"), f"1 {HOLDERS['w1']} error ".ljust(1025, "x"))],
                "at most 1024",
            ),
        )
    ),
    Try(
        name="release of what w1 holds",
        on=World.held,
        who="w2",
        write=lambda world, task: patch_of(world.release(task, LeaseEnd.ERROR)),
        refused=NOT_HOLDER,
        status=403,
    ),
    Try(
        name="release by the holder of before, that compares nothing",
        on=World.held_again,
        who="w2",
        write=lambda world, task: without_tests(patch_of(world.release(task, LeaseEnd.SHUTDOWN))),
        refused=f"not the holder: token 2 is held by {HOLDERS['w1']}",
        status=403,
    ),
    Try(
        name="release of a settled task",
        on=World.settled,
        who="w1",
        write=lambda world, task: without_tests(patch_of(world.release(open_again(task), LeaseEnd.SHUTDOWN))),
        refused="the task is settled",
    ),
    Try(
        name="a lease is taken over without a claim",
        on=World.held,
        who="w2",
        write=lambda world, task: main_merge(
            {"annotations": ours(holder=HOLDERS["w2"], holder_account=world.account("w2"))}
        ),
        refused="change only with a claim",
        or_else="not the holder: token 1 is held by",
    ),
]


def open_again(task: Task) -> Task:
    """What a worker believes that does not know of its own receipt."""
    return replace(task, state=State.OPEN, receipts=())


@pytest.mark.parametrize("row", RELEASE_TRIES, ids=str)
def test_a_release_says_how_the_lease_ended(world: World, row: Try) -> None:
    row.run(world)


OTHER_TRIES = [
    *(
        Try(
            name=name,
            on=World.held,
            who="w1",
            write=lambda _, task, patch=patch: patch,
            refused=refused,
            or_else=HEARTBEAT,
        )
        for name, patch, refused in (
            ("a renamed key in the request", main_merge(spec={"request": {"b": 1, "a": None}}), "immutable"),
            ("suspend", main_merge(spec={"suspend": True}), SPEC_STAYS),
            ("an owner that is gone", main_merge({"ownerReferences": [OWNER]}), SPEC_STAYS),
            ("a label", main_merge({"labels": {"team": "x"}}), "a worker changes no labels"),
            ("an annotation", main_merge({"annotations": {"team": "x"}}), "a worker changes no annotations"),
            ("all labels go", operations(Part.MAIN, removing("/metadata/labels")), "come and go together"),
            ("nothing", main_merge({"annotations": {}}), "a heartbeat sets renewals to 1"),
        )
    ),
]


@pytest.mark.parametrize("row", OTHER_TRIES, ids=str)
def test_a_worker_changes_nothing_else(world: World, row: Try) -> None:
    row.run(world)


def test_a_worker_may_not_remove_what_people_wrote(world: World) -> None:
    task = world.held()
    marked = world.send(
        "person", task, main_merge({"labels": {"team": "north"}, "annotations": {"team/note": "hello"}})
    )
    assert marked.ok, marked.message
    for path, refused in (
        ("/metadata/labels/team", "a worker changes no labels"),
        ("/metadata/annotations/team~1note", "a worker changes no annotations"),
    ):
        answer = world.send("w1", task, and_then(patch_of(world.heartbeat(task)), removing(path)))
        refuse(answer, refused)
    assert world.send("w1", task, patch_of(world.heartbeat(task))).ok


@pytest.mark.parametrize(
    ("method", "suffix"), [("DELETE", ""), ("PUT", ""), ("PUT", "/status")], ids=lambda value: value or "main"
)
def test_a_worker_has_no_other_verbs(world: World, method: str, suffix: str) -> None:
    task = world.held()
    body = None if method == "DELETE" else world.stored(task.key.name)
    answer = world.request("w1", method, world.path(task.key.name) + suffix, body)
    assert answer.status == 403
    assert "cannot" in answer.message


def test_a_worker_of_another_namespace_sees_and_does_nothing(world: World) -> None:
    task = world.held()
    elsewhere = world.cluster.new_namespace("elsewhere")
    token = world.cluster.service_account(elsewhere, "worker", "w1")
    stranger = world.cluster.api_as(token)
    path = world.path(task.key.name)
    assert stranger.request("GET", path).status == 403
    heartbeat = patch_of(world.heartbeat(task))
    answer = stranger.request("PATCH", path, heartbeat.body, content_type=heartbeat.content_type)
    assert answer.status == 403
    world.cluster.delete_namespace(elsewhere)
