"""Receipts: written by the holder of the moment or by the operator, one at a time, and never changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fencepost.kube.patches import Part, Patch, alternatives_of
from fencepost.protocol import limits
from fencepost.protocol.payload import sha256_hex
from fencepost.protocol.task import Kind, LeaseEnd, Outcome, Reason, Receipt, Task
from fencepost.protocol.upkeep import revoke
from tests.cluster.admission_world import (
    HOLDERS,
    NOW,
    Try,
    World,
    and_then,
    operations,
    patch_of,
    refuse,
    removing,
    setting,
    status_merge,
    without_tests,
    world,
)

__all__ = ["world"]

NEWEST = "/status/receipts/-"


def submit(world: World, task: Task, **receipt: Any) -> Patch:
    """The product's submit of a receipt of these properties."""
    return patch_of(world.submit(task, world.receipt(task, **receipt)))


def altered(world: World, task: Task, **fields: Any) -> Patch:
    """A submit whose receipt differs in these fields (None: left out), and that compares nothing."""
    patch = without_tests(submit(world, task))
    return replace(patch, body=[_altered(step, fields) for step in patch.body])


def _altered(step: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    if step["path"] != NEWEST:
        return step
    value = {key: text for key, text in (step["value"] | fields).items() if text is not None}
    return step | {"value": value}


def after_revoke(world: World, task: Task) -> Patch:
    patch = without_tests(submit(world, task))
    world.done("operator", revoke(task, LeaseEnd.EXPIRED), task)
    return patch


LAWFUL = [
    ("Ok", World.held, {}),
    ("Rejected", World.held, {"outcome": Outcome.REJECTED, "value": "no"}),
    ("Unknown", World.held, {"outcome": Outcome.UNKNOWN}),
    ("a row", World.held, {"kind": Kind.ROW}),
    ("Ok after rows", lambda world: world.with_receipts(3), {}),
    ("Ok after Unknown", lambda world: world.unknown(held=True), {}),
    ("Unknown after Unknown", lambda world: world.unknown(held=True), {"outcome": Outcome.UNKNOWN}),
    ("the longest value", World.held, {"value": "x" * limits.VALUE_BYTES_MAX}),
    ("the longest value in bytes", World.held, {"value": "é" * (limits.VALUE_BYTES_MAX // 2)}),
    ("the longest key", World.held, {"key": "k" * 256}),
]


@pytest.mark.parametrize(("name", "on", "receipt"), LAWFUL, ids=[row[0] for row in LAWFUL])
def test_the_holder_submits(
    world: World, name: str, on: Callable[[World], Task], receipt: dict[str, Any]
) -> None:
    Try(name=name, on=on, who="w1", write=lambda w, task: submit(w, task, **receipt)).run(world)


FENCED = [
    (
        "the fencing token of before",
        {"fencingToken": 0},
        "stale fencing token: the current one is 1, held by",
    ),
    ("a token of the future", {"fencingToken": 2}, "stale fencing token"),
    ("another holder", {"holder": HOLDERS["w2"]}, f"not the holder: token 1 is held by {HOLDERS['w1']}"),
    ("another incarnation", {"holder": f"{HOLDERS['w1'][:37]}old"}, "not the holder"),
    ("the operator's name", {"holder": "operator"}, "not the holder"),
]

FORMED = [
    ("somebody else's account", {"recordedBy": "system:serviceaccount:x:y"}, "recordedBy must be your own"),
    ("a reason", {"reason": "Cancelled"}, "only the operator gives a receipt a reason"),
    ("sequence 2", {"sequence": 2}, "its sequence the old count + 1"),
    ("sequence 0", {"sequence": 0}, "greater than or equal to 1"),
    ("another previous", {"previous": "0" * 64}, "its previous is the old head"),
    ("another hash", {"receiptSha256": "1" * 64}, "status.head is the hash of the newest receipt"),
    ("a short hash", {"payloadSha256": "abc"}, "payloadSha256"),
    ("16385 characters", {"value": "x" * 16_385}, "value"),
    ("16386 bytes", {"value": "é" * 8193}, "value takes at most 16384 bytes of UTF-8"),
    ("257 characters of key", {"idempotencyKey": "k" * 257}, "idempotencyKey"),
    ("258 bytes of key", {"idempotencyKey": "é" * 129}, "idempotencyKey takes at most 256 bytes"),
    ("an empty key", {"idempotencyKey": ""}, "idempotencyKey"),
    ("258 bytes of holder", {"holder": "é" * 129}, "holder takes at most 256 bytes"),
    ("an Unknown with a value", {"outcome": "Unknown"}, "an Unknown outcome has an empty value"),
    ("a row that is Rejected", {"kind": "Row", "outcome": "Rejected"}, "a row has the outcome Ok"),
    ("a kind that there is not", {"kind": "Report"}, "kind"),
    ("an outcome that there is not", {"outcome": "Maybe"}, "outcome"),
    ("a reason that there is not", {"reason": "Because"}, "reason"),
    ("65 characters of device time", {"deviceTime": "x" * 65}, "deviceTime"),
    ("no value", {"value": None}, "value: Required value"),
    ("no hash", {"payloadSha256": None}, "payloadSha256: Required value"),
    ("a token over 2^53 - 1", {"fencingToken": 2**53}, "fencingToken"),
]

RECEIPT_TRIES = [
    *(
        Try(
            name=f"a receipt with {name}",
            on=World.held,
            who="w1",
            write=lambda world, task, fields=fields: altered(world, task, **fields),
            refused=refused,
            status=status,
        )
        for status, rows in ((403, FENCED), (422, FORMED))
        for name, fields, refused in rows
    ),
    *(
        Try(
            name=f"{name}, in w1's name",
            on=World.held,
            who=who,
            write=lambda world, task, fields=fields: altered(world, task, **fields(world)),
            refused=refused,
            status=status,
        )
        for who in ("w2", "operator", "admin")
        for name, fields, refused, status in (
            ("a receipt by w1's account", lambda _: {}, "recordedBy must be your own account", 422),
        )
    ),
    Try(
        name="a receipt by its own account in w1's holder",
        on=World.held,
        who="w2",
        write=lambda world, task: altered(world, task, recordedBy=world.account("w2")),
        refused="not the holder: token 1 is held by",
        status=403,
    ),
    Try(
        name="a receipt",
        on=World.held,
        who="person",
        write=submit,
        refused="cannot patch resource",
        status=403,
    ),
    Try(
        name="a receipt after its lease was revoked",
        on=World.held,
        who="w1",
        write=after_revoke,
        refused="not the holder: token 1 is held by nobody",
        status=403,
    ),
    Try(
        name="a receipt under token 1 when token 2 was claimed",
        on=World.held_again,
        who="w1",
        write=lambda world, task: altered(world, task, fencingToken=1),
        refused=f"stale fencing token: the current one is 2, held by {HOLDERS['w1']}",
        status=403,
    ),
    Try(
        name="a receipt of before, by the holder of before",
        on=World.held_again,
        who="w2",
        write=lambda world, task: altered(
            world, task, fencingToken=1, holder=HOLDERS["w2"], recordedBy=world.account("w2")
        ),
        refused="stale fencing token: the current one is 2",
        status=403,
    ),
]


def run_on_held(row: Try, world: World) -> None:
    """Like `Try.run`; the write itself may change the task before it is sent."""
    task = row.on(world)
    patch = row.write(world, task)
    before = world.stored(task.key.name)
    answer = world.send(row.who, task, patch)
    refuse(answer, row.refused, row.status)
    assert world.stored(task.key.name) == before


@pytest.mark.parametrize("row", RECEIPT_TRIES, ids=str)
def test_a_receipt_that_is_not_the_holders_is_refused(world: World, row: Try) -> None:
    run_on_held(row, world)


CONSISTENT = [
    ("Ok without a state", [removing("/status/state")], "what the new receipt implies"),
    ("Ok that fails", [setting("/status/state", "Failed")], "what the new receipt implies"),
    ("Ok that cancels", [setting("/status/state", "Cancelled")], "what the new receipt implies"),
    ("Ok that is not settled", [setting("/status/settled", False)], "status.settled is true exactly"),
    ("another head", [setting("/status/head", "0" * 64)], "status.head is the hash"),
    ("another count", [setting("/status/count", 2)], "status.count is the number of receipts"),
    (
        "a condition that says otherwise",
        [setting("/status/conditions/0/status", "False")],
        "the condition Succeeded says what status.state says",
    ),
    ("no condition", [setting("/status/conditions", [])], "the condition Succeeded says"),
    ("nine conditions", [setting("/status/conditions", [{}] * 9)], "conditions"),
]


@pytest.mark.parametrize(("name", "steps", "refused"), CONSISTENT, ids=[row[0] for row in CONSISTENT])
def test_what_follows_from_a_receipt_comes_with_it(
    world: World, name: str, steps: list[dict[str, Any]], refused: str
) -> None:
    Try(
        name=name,
        on=World.held,
        who="w1",
        write=lambda w, task: and_then(without_tests(submit(w, task)), *steps),
        refused=refused,
    ).run(world)


ROW_STEPS = [
    (
        "a row that settles",
        {"kind": Kind.ROW},
        [setting("/status/state", "Succeeded")],
        "what the new receipt",
    ),
    (
        "an Unknown that succeeds",
        {"outcome": Outcome.UNKNOWN},
        [setting("/status/state", "Succeeded")],
        "what the new receipt implies",
    ),
    (
        "an Unknown that is settled",
        {"outcome": Outcome.UNKNOWN},
        [setting("/status/settled", True)],
        "status.settled is true exactly in",
    ),
    (
        "a row with a completion time",
        {"kind": Kind.ROW},
        [setting("/status/completionTime", NOW)],
        "completionTime is for a settled task",
    ),
]


@pytest.mark.parametrize(
    ("name", "receipt", "steps", "refused"), ROW_STEPS, ids=[row[0] for row in ROW_STEPS]
)
def test_what_does_not_settle_settles_nothing(
    world: World, name: str, receipt: dict[str, Any], steps: list[dict[str, Any]], refused: str
) -> None:
    Try(
        name=name,
        on=World.held,
        who="w1",
        write=lambda w, task: and_then(without_tests(submit(w, task, **receipt)), *steps),
        refused=refused,
    ).run(world)


ALONE = [
    ("state", status_merge(state="Succeeded", settled=True), "what the new receipt implies"),
    ("settled", status_merge(settled=True), "status.settled is true exactly"),
    ("head", status_merge(head="0" * 64), "status.head is the hash of the newest receipt"),
    ("count", status_merge(count=5), "status.count is the number of receipts"),
    ("completionTime", status_merge(completionTime=NOW), "completionTime is for a settled task"),
    (
        "a condition's message",
        operations(Part.STATUS, setting("/status/conditions/0/message", "hello")),
        "a worker changes status only together with a new receipt",
    ),
    (
        "one more condition",
        operations(
            Part.STATUS,
            setting(
                "/status/conditions/-",
                {"type": "X", "status": "True", "reason": "x", "message": "", "lastTransitionTime": NOW},
            ),
        ),
        "a worker changes status only together with a new receipt",
    ),
]


@pytest.mark.parametrize(("name", "patch", "refused"), ALONE, ids=[row[0] for row in ALONE])
def test_a_worker_changes_status_only_with_a_receipt(
    world: World, name: str, patch: Patch, refused: str
) -> None:
    Try(name=name, on=World.held, who="w1", write=lambda _, task: patch, refused=refused).run(world)


@pytest.mark.parametrize("who", ["w1", "operator", "admin"])
@pytest.mark.parametrize(
    ("name", "patch"),
    [
        ("a value", operations(Part.STATUS, setting("/status/receipts/0/value", "other"))),
        ("a device time", operations(Part.STATUS, setting("/status/receipts/0/deviceTime", NOW))),
        ("the last goes", operations(Part.STATUS, removing("/status/receipts/2"))),
        ("all go", status_merge(receipts=[])),
        ("the list goes", operations(Part.STATUS, removing("/status/receipts"))),
        ("status goes", operations(Part.STATUS, removing("/status"))),
        (
            "status is emptied",
            Patch(part=Part.STATUS, content_type="application/merge-patch+json", body={"status": None}),
        ),
        (
            "two change places",
            operations(
                Part.STATUS, {"op": "move", "from": "/status/receipts/0", "path": "/status/receipts/1"}
            ),
        ),
        (
            "one is copied",
            operations(
                Part.STATUS, {"op": "copy", "from": "/status/receipts/0", "path": "/status/receipts/-"}
            ),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_receipts_are_never_changed_or_removed(world: World, who: str, name: str, patch: Patch) -> None:
    task = world.with_receipts(3)
    before = world.stored(task.key.name)
    answer = world.send(who, task, patch)
    assert answer.status == 422, answer.message
    assert world.stored(task.key.name) == before


def test_an_emptied_status_of_a_new_task_gets_its_defaults_back(world: World) -> None:
    """Nothing is lost by it, because there is nothing yet; with receipts it is refused (above)."""
    task = world.free()
    answer = world.send("operator", task, operations(Part.STATUS, removing("/status")))
    assert answer.ok, answer.message
    assert answer.body["status"] == world.stored(task.key.name)["status"]
    assert answer.body["status"]["state"] == "Open"


def test_one_receipt_a_write(world: World) -> None:
    task = world.held()
    first = world.receipt(task, kind=Kind.ROW, value="a")
    after = replace(task, receipts=(first,))
    second = world.receipt(after, kind=Kind.ROW, value="b")
    both = and_then(
        patch_of(world.submit(task, first)), *without_tests(patch_of(world.submit(after, second))).body
    )
    answer = world.send("w1", task, both)
    refuse(answer, "at most one new receipt a write")


def test_a_receipt_stands_last(world: World) -> None:
    task = world.with_receipts(2)
    patch = without_tests(submit(world, task, kind=Kind.ROW))
    for place in ("0", "1"):
        body = [
            step | {"path": f"/status/receipts/{place}"} if step["path"] == NEWEST else step
            for step in patch.body
        ]
        answer = world.send("w1", task, replace(patch, body=body))
        refuse(answer, "receipts are append-only")


def test_a_key_has_one_receipt(world: World) -> None:
    task = world.with_receipts(2)
    used = task.receipts[0].idempotency_key
    answer = world.send("w1", task, submit(world, task, kind=Kind.ROW, value="other", key=used))
    refuse(answer, "the idempotency key has a receipt already")


@pytest.mark.parametrize("who", ["w1", "operator", "admin"])
def test_a_settled_task_is_final(world: World, who: str) -> None:
    task = world.settled()
    late = replace(task, state=world.held().state)
    writes = [
        (
            without_tests(patch_of(world.submit(late, _by(world, task, who)))),
            "the task is settled: nothing changes any more",
        ),
        (status_merge(state="Open", settled=False), "the task is settled"),
        (operations(Part.STATUS, setting("/status/conditions/0/message", "x")), "the task is settled"),
        (status_merge(completionTime=None), "the task is settled"),
    ]
    for patch, refused in writes:
        answer = world.send(who, task, patch)
        refuse(answer, refused)


def _by(world: World, task: Task, who: str) -> Receipt:
    receipt = world.receipt(task, value="late")
    return replace(receipt, recorded_by=world.account(who))


OPERATOR_TRIES = [
    *(
        Try(
            name=f"settle of {name} as {reason.value}",
            on=on,
            who="operator",
            write=lambda world, task, reason=reason: patch_of_settle(world, task, reason),
        )
        for name, on in (
            ("a free task", World.free),
            ("a task that was given back", World.released),
            ("an Unknown", lambda world: world.unknown(held=False)),
        )
        for reason in (Reason.CANCELLED, Reason.DEADLINE_EXCEEDED, Reason.FAILURES_EXHAUSTED)
    ),
    Try(
        name="settle of a held task",
        on=World.held,
        who="operator",
        write=lambda world, task: without_tests(patch_of_settle(world, task, Reason.CANCELLED)),
        refused="not the holder: token 1 is held by",
        status=403,
    ),
    Try(
        name="settle",
        on=World.free,
        who="w1",
        write=lambda world, task: as_written_by(world, "w1", patch_of_settle(world, task, Reason.CANCELLED)),
        refused="not the holder: token 0 is held by nobody",
        status=403,
    ),
    Try(
        name="settle that says Failed although it was cancelled",
        on=World.free,
        who="operator",
        write=lambda world, task: and_then(
            patch_of_settle(world, task, Reason.CANCELLED), setting("/status/state", "Failed")
        ),
        refused="status.state is what the new receipt implies",
    ),
    Try(
        name="a reason under its own lease",
        on=World.held,
        who="w1",
        write=lambda world, task: and_then(
            altered(world, task, outcome="Rejected", reason="DeadlineExceeded"),
            setting("/status/state", "Failed"),
            setting("/status/conditions/0/status", "False"),
        ),
        refused="only the operator gives a receipt a reason",
    ),
]


def patch_of_settle(world: World, task: Task, reason: Reason) -> Patch:
    patches = alternatives_of(world.settle(task, reason), now=NOW)
    never_annotated = "annotations" not in world.stored(task.key.name)["metadata"]
    return patches[1] if never_annotated else patches[0]


def as_written_by(world: World, who: str, patch: Patch) -> Patch:
    body = [_altered(step, {"recordedBy": world.account(who)}) for step in patch.body]
    return replace(patch, body=body)


@pytest.mark.parametrize("row", OPERATOR_TRIES, ids=str)
def test_the_operator_settles_what_nobody_holds(world: World, row: Try) -> None:
    row.run(world)


def test_the_last_receipts_are_kept_for_settling(world: World) -> None:
    """Rows fill 28 of 32 places; then only what settles the task is taken, and it is."""
    task = world.with_receipts(limits.ROW_SEQUENCE_MAX)
    for what in ({"kind": Kind.ROW, "value": "one more"}, {"outcome": Outcome.UNKNOWN}):
        receipt = one_more(world, task, **what)
        answer = world.send("w1", task, patch_of(world.submit(task, receipt)))
        refuse(answer, "the last 4 of 32 receipts are kept for the settling one")
    answer = world.send("w1", task, submit(world, task))
    assert answer.ok, answer.message
    assert answer.body["status"]["count"] == limits.ROW_SEQUENCE_MAX + 1


def one_more(
    world: World, task: Task, *, kind: Kind = Kind.RESULT, outcome: Outcome = Outcome.OK, value: str = ""
) -> Receipt:
    """A receipt that the library itself would not make any more."""
    first = world.receipt(replace(task, receipts=()), kind=kind, outcome=outcome, value=value)
    return replace(first, sequence=task.count + 1, previous=task.head)


def test_the_rows_of_a_task_have_a_limit_together(world: World) -> None:
    task = world.held()
    for place in range(limits.ROWS_BYTES_MAX // limits.VALUE_BYTES_MAX):
        row = world.receipt(task, kind=Kind.ROW, value=f"{place}".ljust(limits.VALUE_BYTES_MAX, "x"))
        task = world.done("w1", world.submit(task, row), task)
    over = one_more(world, task, kind=Kind.ROW, value="x")
    answer = world.send("w1", task, patch_of(world.submit(task, over)))
    refuse(answer, f"the rows of one task take at most {limits.ROWS_BYTES_MAX} bytes together")
    assert world.send("w1", task, submit(world, task)).ok


def test_metadata_and_spec_cannot_be_reached_through_status(world: World) -> None:
    task = world.held()
    patch = and_then(
        submit(world, task),
        setting("/metadata/labels/team", "x"),
        setting("/metadata/annotations/fencepost.dev~1fencing-token", "9"),
        setting("/spec/priority", 9),
    )
    answer = world.send("w1", task, patch)
    assert answer.ok, answer.message
    assert answer.body["metadata"]["annotations"]["fencepost.dev/fencing-token"] == "1"
    assert "team" not in answer.body["metadata"]["labels"]
    assert answer.body["spec"]["priority"] == task.spec.priority


def test_a_duplicate_names_the_receipt_that_has_its_payload(world: World) -> None:
    task = world.with_receipts(1)
    receipt = replace(world.receipt(task, value="row 0"), duplicate_of=task.receipts[0].receipt_sha256)
    assert receipt.payload_sha256 == sha256_hex("row 0")
    answer = world.send("w1", task, patch_of(world.submit(task, receipt)))
    assert answer.ok, answer.message
    assert answer.body["status"]["receipts"][1]["duplicateOf"] == task.receipts[0].receipt_sha256
