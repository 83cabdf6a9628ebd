"""The lease in the metadata of a task: no caller, the admin included, can bend the fence (FENCE-01)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fencepost.kube.patches import Part, Patch
from fencepost.protocol.limits import COUNTER_MAX, FENCING_TOKEN_MAX
from fencepost.protocol.task import LeaseEnd, Task
from fencepost.protocol.upkeep import revoke
from tests.cluster.admission_world import (
    HOLDERS,
    Try,
    World,
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
    without_version,
    world,
)

__all__ = ["world"]

EVERYONE = ("w1", "person", "operator", "admin")
NO_LEASE = "a new LeasedTask carries no lease"


def new_task(world: World, **changes: Any) -> dict[str, Any]:
    metadata = {"name": world.new_name("new")} | changes.pop("metadata", {})
    return {
        "apiVersion": "fencepost.dev/v1alpha1",
        "kind": "LeasedTask",
        "metadata": metadata,
        "spec": {"queue": "feeds", "request": {}} | changes,
    }


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"metadata": {"annotations": ours(fencing_token="1")}}, "fencepost.dev/fencing-token"),
        ({"metadata": {"annotations": ours(fencing_token=str(2**53))}}, NO_LEASE),
        ({"metadata": {"annotations": ours(holder=HOLDERS["w1"])}}, "fencepost.dev/holder"),
        ({"metadata": {"annotations": ours(failures="3")}}, "fencepost.dev/failures"),
        ({"metadata": {"annotations": ours(last_lease="1 x expired")}}, NO_LEASE),
        ({"metadata": {"annotations": ours(anything="x")}}, "fencepost.dev/anything"),
        ({"metadata": {"labels": ours(hold="Leased")}}, "fencepost.dev/hold"),
        ({"metadata": {"labels": ours(hold="Backoff")}}, NO_LEASE),
        ({"metadata": {"labels": ours(outbox="x")}}, "fencepost.dev/outbox"),
        ({"metadata": {"annotations": ours(branch="x" * 257)}}, "at most 256 bytes"),
        ({"priority": 10}, "spec.priority"),
        ({"priority": -1}, "spec.priority"),
        ({"leaseDurationSeconds": 0}, "greater than or equal to 1"),
        ({"leaseDurationSeconds": -1}, "greater than or equal to 1"),
        ({"leaseDurationSeconds": 3601}, "less than or equal to 3600"),
        ({"leaseDurationSeconds": 10**9}, "less than or equal to 3600"),
        ({"leaseDurationSeconds": "30s"}, "spec.leaseDurationSeconds"),
        ({"retryPolicy": {"maxFailures": 51}}, "spec.retryPolicy.maxFailures"),
        ({"retryPolicy": {"backoffBaseSeconds": 3601}}, "spec.retryPolicy.backoffBaseSeconds"),
        ({"retryPolicy": {"backoffMaxSeconds": 86_401}}, "spec.retryPolicy.backoffMaxSeconds"),
        ({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds"),
        ({"ttlSecondsAfterFinished": -1}, "spec.ttlSecondsAfterFinished"),
        ({"queue": "Feeds"}, "spec.queue"),
        ({"queue": "q" * 64}, "spec.queue"),
        ({"request": "text"}, "spec.request"),
        ({"request": [1]}, "spec.request"),
        ({"unknownPolicy": "Retry"}, "spec.unknownPolicy"),
        ({"dedupScope": "Job"}, "spec.dedupScope"),
    ],
    ids=str,
)
def test_a_task_that_is_created_otherwise_is_refused(
    world: World, changes: dict[str, Any], refused: str
) -> None:
    for who in ("person", "operator", "admin"):
        answer = world.request(who, "POST", world.path(), new_task(world, **dict(changes)))
        refuse(answer, refused)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"metadata": {"labels": {"team": "north"}, "annotations": {"team/note": "x" * 2000}}},
        {"metadata": {"annotations": ours(branch="n" * 256), "labels": ours(job_uid="x")}},
        {"priority": 0, "leaseDurationSeconds": 3600, "external": True, "suspend": True},
        {"priority": 9, "leaseDurationSeconds": 1, "retryPolicy": {"maxFailures": 50}},
        {"request": {"a": {"b": [1, None, 1.5]}}, "ttlSecondsAfterFinished": 0},
    ],
    ids=str,
)
def test_a_task_that_is_created_lawfully_is_taken(world: World, changes: dict[str, Any]) -> None:
    for who in ("person", "operator", "admin"):
        answer = world.request(who, "POST", world.path(), new_task(world, **dict(changes)))
        assert answer.status == 201, answer.message


def test_a_status_that_is_sent_with_a_new_task_is_ignored(world: World) -> None:
    body = new_task(world) | {"status": {"state": "Succeeded", "settled": True}}
    answer = world.request("person", "POST", world.path(), body)
    assert answer.status == 201
    assert answer.body["status"]["state"] == "Open"
    assert answer.body["status"]["settled"] is False


def test_workers_and_viewers_create_no_tasks(world: World) -> None:
    for who in ("w1", "viewer"):
        answer = world.request(who, "POST", world.path(), new_task(world))
        assert answer.status == 403
        assert "cannot create" in answer.message


TOKEN_CHANGES = {
    "falls": ("1", "the fencing token is 2: it may stay or become 3, not 1"),
    "falls to 0": ("0", "it may stay or become 3, not 0"),
    "jumps by two": ("4", "it may stay or become 3, not 4"),
    "vanishes": (None, "the fencing token 2 may not be removed"),
    "is garbage": ("abc", "must be a whole number from 0 to 9007199254740991 without leading zeros, got abc"),
    "is empty": ("", "must be a whole number"),
    "has a leading zero": ("02", "must be a whole number"),
    "has a sign": ("+2", "must be a whole number"),
    "has a space": (" 2", "must be a whole number"),
    "has a line break": ("2\n", "must be a whole number"),
    "is negative": ("-1", "must be a whole number"),
    "is 2^53": (str(FENCING_TOKEN_MAX + 1), "must be a whole number"),
    "has 20 digits": ("9" * 20, "must be a whole number"),
}


def renewed_twice(world: World) -> Any:
    task = world.held()
    for _ in range(2):
        task = world.done("w1", world.heartbeat(task), task)
    return task


TOKEN_TRIES = [
    Try(
        name=f"the token {name}",
        on=World.held_again,
        who=who,
        write=lambda _, task, text=text: main_merge({"annotations": ours(fencing_token=text)}),
        refused=refused,
    )
    for who in EVERYONE
    for name, (text, refused) in TOKEN_CHANGES.items()
]

FENCE_TRIES = [
    *TOKEN_TRIES,
    *(
        Try(
            name="the token grows on a held task",
            on=World.held_again,
            who=who,
            write=lambda _, task: main_merge({"annotations": ours(fencing_token="3")}),
            refused=f"not claimable: held by {HOLDERS['w1']} with token 2",
            status=403,
        )
        for who in EVERYONE
    ),
    *(
        Try(
            name=name,
            on=World.held_again,
            who=who,
            write=lambda _, task, patch=patch: patch,
            refused=refused,
        )
        for who in ("person", "operator", "admin")
        for name, patch, refused in (
            (
                "all annotations go",
                operations(Part.MAIN, removing("/metadata/annotations")),
                "the fencing token 2 may not be removed",
            ),
            (
                "only the holder goes",
                main_merge({"annotations": ours(holder=None)}),
                "come and go together",
            ),
            (
                "another holder",
                main_merge({"annotations": ours(holder=HOLDERS["w2"])}),
                "change only with a claim",
            ),
            (
                "another account",
                main_merge({"annotations": ours(holder_account="me")}),
                "change only with a claim",
            ),
            (
                "another mark",
                main_merge({"annotations": ours(outbox_mark="9 x")}),
                "change only with a claim",
            ),
            (
                "hold=Backoff on a held task",
                main_merge({"labels": ours(hold="Backoff")}),
                "come and go together",
            ),
            ("no hold on a held task", main_merge({"labels": ours(hold=None)}), "come and go together"),
            (
                "another outbox",
                main_merge({"labels": ours(outbox="x")}),
                "the label outbox changes only with",
            ),
            ("no outbox", main_merge({"labels": ours(outbox=None)}), "come and go together"),
            ("renewals=abc", main_merge({"annotations": ours(renewals="abc")}), "renewals and failures are"),
            ("failures=abc", main_merge({"annotations": ours(failures="abc")}), "renewals and failures are"),
            ("failures=-1", main_merge({"annotations": ours(failures="-1")}), "renewals and failures are"),
            (
                "failures over the maximum",
                main_merge({"annotations": ours(failures=str(COUNTER_MAX + 1))}),
                "from 0 to 999999999",
            ),
            (
                "last-lease without an end",
                main_merge({"annotations": ours(last_lease=f"2 {HOLDERS['w1']} expired")}),
                "last-lease changes only when a lease ends",
            ),
            (
                "progress over its limit",
                main_merge({"annotations": ours(progress="é" * 513)}),
                "at most 1024",
            ),
            ("a branch", main_merge({"annotations": ours(branch="x")}), "set when the task is made"),
            ("a job", main_merge({"labels": ours(job_uid="x")}), "set when the task is made"),
        )
    ),
    *(
        Try(
            name=name,
            on=World.free,
            who=who,
            write=lambda _, task, patch=patch: patch,
            refused=refused,
        )
        for who in ("person", "operator", "admin")
        for name, patch, refused in (
            ("hold=Leased alone", main_merge({"labels": ours(hold="Leased")}), "come and go together"),
            ("hold=Foo", main_merge({"labels": ours(hold="Foo")}), "fencepost.dev/hold is Leased, Backoff"),
            ("hold=Unknown in Open", main_merge({"labels": ours(hold="Unknown")}), "a hold is set only by"),
            ("hold=Backoff", main_merge({"labels": ours(hold="Backoff")}), "a hold is set only by a claim"),
            (
                "a holder alone",
                main_merge({"annotations": ours(holder=HOLDERS["w1"])}),
                "change only with a claim",
            ),
        )
    ),
    Try(
        name="renewals fall during a lease",
        on=renewed_twice,
        who="person",
        write=lambda _, task: main_merge({"annotations": ours(renewals="1")}),
        refused="renewals never falls during a lease: it is 2",
    ),
    Try(
        name="the holder of a settled task goes",
        on=World.settled,
        who="admin",
        write=lambda _, task: operations(
            Part.MAIN,
            *(removing(annotation(name)) for name in ("holder", "holder-account", "renewals")),
            removing(label("outbox")),
            removing(label("hold")),
            setting(annotation("last-lease"), f"1 {HOLDERS['w1']} expired"),
        ),
        refused="the task is settled: its lease stays as the record of who did it",
    ),
    Try(
        name="the hold of a settled task changes",
        on=World.cancelled,
        who="operator",
        write=lambda _, task: main_merge({"labels": ours(hold="Backoff")}),
        refused="the task is settled",
    ),
    Try(
        name="the failures of a settled task change",
        on=World.settled,
        who="person",
        write=lambda _, task: main_merge({"annotations": ours(failures="1")}),
        refused="the task is settled",
    ),
]


@pytest.mark.parametrize("row", FENCE_TRIES, ids=str)
def test_nobody_bends_the_fence(world: World, row: Try) -> None:
    row.run(world)


CLAIM_FORM = "a claim sets holder (outbox UUID/incarnation)"

CLAIM_TRIES = [
    *(
        Try(
            name=f"a lawful claim, {name}",
            on=on,
            who="w1",
            write=lambda world, task: patch_of(world.claim(task)),
        )
        for name, on in (("first", World.free), ("again", World.released))
    ),
    *(
        Try(
            name=f"a claim of a task that is {name}",
            on=on,
            who=who,
            write=lambda world, task, who=who: patch_of(world.claim(task, "w2" if who == "w2" else "w1")),
            refused=refused,
            status=403,
        )
        for who in ("w1", "w2")
        for name, on, refused in (
            ("held", World.held, f"not claimable: held by {HOLDERS['w1']} with token 1"),
            ("settled", World.settled, "not claimable: settled"),
            ("cancelled", World.cancelled, "not claimable: settled"),
            ("suspended", lambda world: world.free(suspend=True), "not claimable: suspended"),
            ("external", lambda world: world.free(external=True), "not claimable: external"),
            (
                "on hold after an error",
                lambda world: world.released(LeaseEnd.ERROR),
                "not claimable: on hold (Backoff)",
            ),
            ("on hold, unknown", lambda world: world.unknown(held=False), "on hold (Unknown)"),
        )
    ),
    *(
        Try(
            name=f"a claim {name}",
            on=World.free,
            who="w1",
            write=lambda world, task, change=change: change(patch_of(world.claim(task)), world),
            refused=refused,
            or_else="not the holder: token 0 is held by nobody" if "leaves the token" in name else "",
        )
        for name, change, refused in (
            ("for another account", lambda p, w: annotated(p, holder_account=w.account("w2")), CLAIM_FORM),
            ("without an account", lambda p, _: annotated(p, holder_account=None), CLAIM_FORM),
            ("with an empty holder", lambda p, _: annotated(p, holder=""), CLAIM_FORM),
            ("with a garbage holder", lambda p, _: annotated(p, holder="me"), CLAIM_FORM),
            ("as the operator", lambda p, _: annotated(p, holder="operator"), CLAIM_FORM),
            (
                "with a holder in capitals",
                lambda p, _: annotated(p, holder=HOLDERS["w1"].upper()),
                CLAIM_FORM,
            ),
            (
                "with a long incarnation",
                lambda p, _: annotated(p, holder=f"{HOLDERS['w1'][:37]}{'a' * 65}"),
                CLAIM_FORM,
            ),
            ("of another outbox", lambda p, _: labelled(p, outbox=HOLDERS["w2"][:36]), CLAIM_FORM),
            ("without a hold", lambda p, _: labelled(p, hold=None), CLAIM_FORM),
            ("that begins at renewals 5", lambda p, _: annotated(p, renewals="5"), CLAIM_FORM),
            (
                "of two tokens",
                lambda p, _: annotated(p, fencing_token="2"),
                "it may stay or become 1, not 2",
            ),
            (
                "that leaves the token",
                lambda p, _: annotated(p, fencing_token=None),
                "change only with a claim",
            ),
        )
    ),
    Try(
        name="a claim of what was changed meanwhile",
        on=World.free,
        who="w1",
        write=lambda world, task: patch_of(replace(world.claim(task), version="1")),
        refused="the object has been modified",
        status=409,
    ),
    Try(
        name="a claim of another object of the name",
        on=World.free,
        who="w1",
        write=lambda world, task: patch_of(
            replace(world.claim(task), uid="00000000-0000-4000-8000-000000000000")
        ),
        refused="metadata.uid",
    ),
    Try(
        name="a claim that names no version, of a task that is free",
        on=World.free,
        who="w1",
        write=lambda world, task: without_version(patch_of(world.claim(task))),
    ),
    Try(
        name="a late copy of the claim after the lease has ended",
        on=World.released,
        who="w1",
        write=lambda world, task: without_version(patch_of(world.claim(replace(task, token=0)))),
        refused="change only with a claim",
        or_else="not the holder: token 1 is held by nobody",
    ),
    Try(
        name="a claim in a person's name",
        on=World.free,
        who="person",
        write=lambda world, task: patch_of(replace(world.claim(task), account=world.account("person"))),
    ),
]


@pytest.mark.parametrize("row", CLAIM_TRIES, ids=str)
def test_a_claim_is_lawful_or_refused(world: World, row: Try) -> None:
    row.run(world)


def test_a_claim_changes_nothing_of_the_status(world: World) -> None:
    task = world.free()
    patch = merged(patch_of(world.claim(task)), status={"state": "Succeeded", "settled": True})
    answer = world.send("w1", task, patch)
    assert answer.ok
    assert answer.body["status"]["state"] == "Open"


END_TRIES = [
    *(
        Try(
            name=f"revoke of a held task as {end.value}",
            on=World.held,
            who="operator",
            write=lambda _, task, end=end: patch_of(revoke(task, end)),
        )
        for end in (LeaseEnd.EXPIRED, LeaseEnd.DEADLINE, LeaseEnd.CANCELLED)
    ),
    *(
        Try(
            name=f"revoke in Unknown as {end.value}",
            on=lambda world: world.unknown(held=True),
            who="operator",
            write=lambda _, task, end=end: patch_of(revoke(task, end)),
        )
        for end in (LeaseEnd.EXPIRED, LeaseEnd.CANCELLED)
    ),
    *(
        Try(name=f"revoke {name}", on=on, who=who, write=write, refused=refused)
        for who in ("operator", "admin", "person")
        for name, on, write, refused in (
            (
                "that leaves no hold",
                World.held,
                lambda _, task: ending(task, "expired", hold=None, failures="1"),
                "a lease that ends as expired in state Open leaves hold=Backoff and failures=1",
            ),
            (
                "that does not count",
                World.held,
                lambda _, task: ending(task, "expired", hold="Backoff", failures=None),
                "leaves hold=Backoff and failures=1",
            ),
            (
                "that counts five",
                World.held,
                lambda _, task: ending(task, "expired", hold="Backoff", failures="5"),
                "leaves hold=Backoff and failures=1",
            ),
            (
                "that takes Open for Unknown",
                World.held,
                lambda _, task: ending(task, "expired", hold="Unknown", failures="1"),
                "leaves hold=Backoff and failures=1",
            ),
            (
                "that takes Unknown for Open",
                lambda world: world.unknown(held=True),
                lambda _, task: ending(task, "expired", hold="Backoff", failures="1"),
                "a lease that ends as expired in state Unknown leaves hold=Unknown and failures=1",
            ),
            (
                "of an Unknown at its deadline",
                lambda world: world.unknown(held=True),
                lambda _, task: ending(task, "deadline", hold="Unknown", failures="1"),
                "no lease ends as deadline in state Unknown",
            ),
            (
                "for a reason that there is not",
                World.held,
                lambda _, task: ending(task, "because", hold="Backoff", failures="1"),
                "no lease ends as because in state Open",
            ),
            (
                "that names another token",
                World.held,
                lambda _, task: ending(task, "expired", hold="Backoff", failures="1", token=7),
                f"last-lease names the lease that ends: 1 {HOLDERS['w1']} END",
            ),
            (
                "that names another holder",
                World.held,
                lambda _, task: ending(task, "expired", hold="Backoff", failures="1", holder=HOLDERS["w2"]),
                "last-lease names the lease that ends",
            ),
        )
    ),
    Try(
        name="requeue after a failure",
        on=lambda world: world.released(LeaseEnd.ERROR),
        who="operator",
        write=lambda world, task: patch_of(world.requeue(task)),
    ),
    Try(
        name="requeue of an Unknown",
        on=lambda world: world.unknown(held=False),
        who="operator",
        write=lambda world, task: patch_of(world.requeue(task)),
    ),
    Try(
        name="requeue by hand",
        on=lambda world: world.released(LeaseEnd.ERROR),
        who="person",
        write=lambda world, task: main_merge({"labels": ours(hold=None)}),
    ),
]


def ending(
    task: Any, end: str, *, hold: str | None, failures: str | None, token: int = 1, holder: str = ""
) -> Any:
    """The end of a lease with all that goes with it, but wrong in one place."""
    gone = ("holder", "holder-account", "renewals", "acquired-at", "renewed-at", "outbox-mark")
    return operations(
        Part.MAIN,
        *(removing(annotation(name)) for name in gone),
        removing(label("outbox")),
        setting(label("hold"), hold) if hold else removing(label("hold")),
        setting(annotation("last-lease"), f"{token} {holder or HOLDERS['w1']} {end}"),
        *([setting(annotation("failures"), failures)] if failures else []),
    )


@pytest.mark.parametrize("row", END_TRIES, ids=str)
def test_a_lease_ends_as_the_table_says(world: World, row: Try) -> None:
    row.run(world)


def test_no_token_is_over_the_largest_that_json_keeps(world: World) -> None:
    """2^53 - 1 claims cannot be made in a test; the number is the pattern's and the rule's."""
    task = world.free()
    for text in (str(FENCING_TOKEN_MAX), str(FENCING_TOKEN_MAX + 1)):
        answer = world.send("admin", task, main_merge({"annotations": ours(fencing_token=text)}))
        wanted = "it may stay or become 1" if text == str(FENCING_TOKEN_MAX) else "must be a whole number"
        refuse(answer, wanted)


SPEC_CHANGES = [
    ("another queue", main_merge(spec={"queue": "other"}), "spec.queue is immutable"),
    ("another value in the request", main_merge(spec={"request": {"a": 2}}), "spec.request is immutable"),
    (
        "a key of the request is renamed",
        main_merge(spec={"request": {"a": None, "b": 1}}),
        "ValidatingAdmissionPolicy 'fencepost-fence' with binding 'fencepost-fence' denied request: "
        "spec.request is immutable",
    ),
    ("the request goes", operations(Part.MAIN, removing("/spec/request")), "spec.request is immutable"),
    ("another lease", main_merge(spec={"leaseDurationSeconds": 5}), "spec.leaseDurationSeconds is immutable"),
    ("more failures", main_merge(spec={"retryPolicy": {"maxFailures": 9}}), "spec.retryPolicy is immutable"),
    ("a deadline", main_merge(spec={"activeDeadlineSeconds": 5}), "spec.activeDeadlineSeconds is immutable"),
    ("a time to live", main_merge(spec={"ttlSecondsAfterFinished": 5}), "spec.ttlSecondsAfterFinished is"),
    ("another policy", main_merge(spec={"unknownPolicy": "Reclaim"}), "spec.unknownPolicy is immutable"),
    ("external", main_merge(spec={"external": True}), "spec.external is immutable"),
    ("spec goes", operations(Part.MAIN, removing("/spec")), "spec: Required value"),
    ("priority 10", main_merge(spec={"priority": 10}), "less than or equal to 9"),
]


@pytest.mark.parametrize("who", ["person", "operator", "admin"])
@pytest.mark.parametrize(("name", "patch", "refused"), SPEC_CHANGES, ids=[row[0] for row in SPEC_CHANGES])
def test_what_a_task_asks_for_is_immutable(
    world: World, who: str, name: str, patch: Patch, refused: str
) -> None:
    def asked(world: World) -> Task:
        return world.free(queue="feeds", request='{"a":1}')

    Try(name=name, on=asked, who=who, write=lambda _, task: patch, refused=refused).run(world)
