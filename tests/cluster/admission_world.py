"""Who tries which write on a task in which standing: what the tests of admission are tables of.

The writes are the product's own (`kube.patches`), sent as they are where they are lawful, and changed in one
place where they are not; so a rule that refuses what the product sends fails here too. Accounts are real
ServiceAccounts under real RBAC.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest

from fencepost.api.read import task_from_object
from fencepost.api.write import task_object
from fencepost.kube.patches import Part, Patch, alternatives_of, pointer
from fencepost.ports import NewTask
from fencepost.protocol.mutation import Claim, Heartbeat, Mutation, Release, Requeue, Settle, Submit
from fencepost.protocol.submission import Submission, new_receipt
from fencepost.protocol.task import (
    Hold,
    Kind,
    LeaseEnd,
    ObjectKey,
    Outcome,
    Reason,
    Receipt,
    Task,
    TaskSpec,
)
from fencepost.protocol.upkeep import revoke, settle
from tests.cluster.cluster import GROUP_PATH, Cluster
from tests.cluster.kube_api import Answer, KubeApi

NOW = "2026-11-30T12:00:00Z"
W1_OUTBOX = "11111111-1111-4111-8111-111111111111"
W2_OUTBOX = "22222222-2222-4222-8222-222222222222"
HOLDERS = {"w1": f"{W1_OUTBOX}/abc", "w2": f"{W2_OUTBOX}/xyz"}
ROLES = {"w1": "worker", "w2": "worker", "person": "edit", "viewer": "view", "operator": "operator"}


@dataclass(frozen=True, slots=True)
class World:
    """A namespace with two workers, a person, a viewer, an operator and the cluster's admin."""

    namespace: str
    callers: dict[str, KubeApi]
    kubeconfigs: dict[str, str]
    cluster: Cluster
    numbers: Iterator[int] = field(default_factory=count)

    def account(self, who: str) -> str:
        """The name under which the API server knows the caller."""
        return f"system:serviceaccount:{self.namespace}:{who}"

    def path(self, name: str = "", plural: str = "leasedtasks") -> str:
        whole = f"{GROUP_PATH}/namespaces/{self.namespace}/{plural}"
        return f"{whole}/{name}" if name else whole

    def request(self, who: str, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        return self.callers[who].request(method, path, body, **more)

    def new_name(self, hint: str = "t") -> str:
        return f"{hint}-{next(self.numbers)}"

    def created(self, **spec: Any) -> Task:
        """A task of this spec, made by the person."""
        key = ObjectKey(namespace=self.namespace, name=self.new_name())
        body = task_object(NewTask(key=key, spec=TaskSpec(**spec)))
        answer = self.request("person", "POST", self.path(), body)
        assert answer.ok, answer.message
        return task_from_object(answer.body)

    def stored(self, name: str) -> Any:
        """The whole object as the admin sees it."""
        answer = self.request("admin", "GET", self.path(name))
        assert answer.ok, answer.message
        return answer.body

    def send(self, who: str, task: Task, patch: Patch) -> Answer:
        """One patch, as it is."""
        path = f"{self.path(task.key.name)}{patch.part.value}"
        return self.request(who, "PATCH", path, patch.body, content_type=patch.content_type)

    def done(self, who: str, mutation: Mutation, task: Task) -> Task:
        """The task after a lawful mutation; the alternatives are tried as the product tries them."""
        answer = None
        for patch in alternatives_of(mutation, now=NOW):
            answer = self.send(who, task, patch)
            if answer.ok:
                return task_from_object(answer.body)
        raise AssertionError(f"{mutation}: {answer.message if answer else 'no patch'}")

    # The mutations that callers make, on the task as it is.

    def claim(self, task: Task, who: str = "w1") -> Claim:
        return Claim(
            key=task.key,
            uid=task.uid,
            version=task.version,
            token=task.token + 1,
            holder=HOLDERS[who],
            account=self.account(who),
            outbox_mark="0 GENESIS",
            at=NOW,
        )

    def heartbeat(self, task: Task, progress: str | None = None) -> Heartbeat:
        return Heartbeat(
            key=task.key,
            uid=task.uid,
            token=task.token,
            holder=task.holder,
            renewals=task.renewals,
            at=NOW,
            progress=progress,
        )

    def release(self, task: Task, end: LeaseEnd, message: str = "") -> Release:
        return Release(
            key=task.key,
            uid=task.uid,
            token=task.token,
            holder=task.holder,
            state=task.state,
            failures=task.failures,
            end=end,
            message=message,
        )

    def requeue(self, task: Task) -> Requeue:
        assert task.hold is not None
        return Requeue(key=task.key, uid=task.uid, token=task.token, hold=task.hold, state=task.state)

    def receipt(
        self,
        task: Task,
        who: str = "w1",
        *,
        outcome: Outcome = Outcome.OK,
        kind: Kind = Kind.RESULT,
        value: str = "done",
        key: str = "",
    ) -> Receipt:
        submission = Submission(
            uid=task.uid,
            idempotency_key=key or f"key-{next(self.numbers)}",
            kind=kind,
            outcome=outcome,
            value="" if outcome is Outcome.UNKNOWN else value,
            recorded_by=self.account(who),
            token=task.token,
            holder=task.holder,
        )
        return new_receipt(task, submission)

    def submit(self, task: Task, receipt: Receipt) -> Submit:
        return Submit(
            key=task.key,
            uid=task.uid,
            token=task.token,
            holder=task.holder,
            state=task.state,
            head=task.head,
            receipt=receipt,
        )

    def settle(self, task: Task, reason: Reason) -> Settle:
        return settle(task, reason, recorded_by=self.account("operator"))

    # Tasks in the standings that writes are tried on.

    def free(self, **spec: Any) -> Task:
        return self.created(**spec)

    def held(self, **spec: Any) -> Task:
        """Held by w1 under token 1."""
        task = self.created(**spec)
        return self.done("w1", self.claim(task), task)

    def held_again(self) -> Task:
        """Held by w1 under token 2, after w2 gave it back at shutdown."""
        task = self.created()
        task = self.done("w2", self.claim(task, "w2"), task)
        task = self.done("w2", self.release(task, LeaseEnd.SHUTDOWN), task)
        return self.done("w1", self.claim(task), task)

    def released(self, end: LeaseEnd = LeaseEnd.SHUTDOWN) -> Task:
        """Given back by w1: claimable after a shutdown, on hold after an error."""
        task = self.held()
        return self.done("w1", self.release(task, end), task)

    def revoked(self) -> Task:
        """Revoked by the operator: w1 had it under token 1 and may not know."""
        task = self.held()
        return self.done("operator", revoke(task, LeaseEnd.EXPIRED), task)

    def with_receipts(self, number: int, task: Task | None = None) -> Task:
        """Held by w1, with that many rows."""
        task = task or self.held()
        for place in range(number):
            row = self.receipt(task, kind=Kind.ROW, value=f"row {place}")
            task = self.done("w1", self.submit(task, row), task)
        return task

    def unknown(self, *, held: bool) -> Task:
        """In state Unknown, held by w1 still, or on hold."""
        task = self.held()
        task = self.done("w1", self.submit(task, self.receipt(task, outcome=Outcome.UNKNOWN)), task)
        if held:
            return task
        return self.done("w1", self.release(task, LeaseEnd.AFTER_UNKNOWN), task)

    def settled(self) -> Task:
        """Succeeded by w1's result."""
        task = self.held()
        return self.done("w1", self.submit(task, self.receipt(task)), task)

    def cancelled(self) -> Task:
        """Settled by the operator, never claimed."""
        task = self.created()
        return self.done("operator", self.settle(task, Reason.CANCELLED), task)


def patch_of(mutation: Mutation) -> Patch:
    """The product's patch for a task that has annotations."""
    return alternatives_of(mutation, now=NOW)[0]


def merged(patch: Patch, **changes: Any) -> Patch:
    """A merge patch with members changed: `metadata`, `spec`, `status`; maps are merged."""
    return replace(patch, body=_deep_merge(patch.body, changes))


def without_version(patch: Patch) -> Patch:
    """A merge patch that may apply to any version."""
    metadata = {key: value for key, value in patch.body["metadata"].items() if key != "resourceVersion"}
    return replace(patch, body=patch.body | {"metadata": metadata})


def annotated(patch: Patch, **texts: str | None) -> Patch:
    """A merge patch with other annotations of ours: `holder_account` is fencepost.dev/holder-account."""
    return merged(patch, metadata={"annotations": ours(**texts)})


def labelled(patch: Patch, **texts: str | None) -> Patch:
    return merged(patch, metadata={"labels": ours(**texts)})


def ours(**texts: str | None) -> dict[str, str | None]:
    return {f"fencepost.dev/{name.replace('_', '-')}": text for name, text in texts.items()}


def main_merge(metadata: dict[str, Any] | None = None, **members: Any) -> Patch:
    """A merge patch of the main resource that somebody wrote by hand."""
    body = members | ({"metadata": metadata} if metadata else {})
    return Patch(part=Part.MAIN, content_type="application/merge-patch+json", body=body)


def status_merge(**status: Any) -> Patch:
    """A merge patch of the status that somebody wrote by hand."""
    return Patch(part=Part.STATUS, content_type="application/merge-patch+json", body={"status": status})


def operations(part: Part, *steps: dict[str, Any]) -> Patch:
    """A JSON Patch that somebody wrote by hand."""
    return Patch(part=part, content_type="application/json-patch+json", body=list(steps))


def and_then(patch: Patch, *steps: dict[str, Any]) -> Patch:
    """A JSON Patch with more operations at its end."""
    return replace(patch, body=[*patch.body, *steps])


def without_tests(patch: Patch) -> Patch:
    """What a worker would send that does not compare anything: the policies must stand alone."""
    return replace(patch, body=[step for step in patch.body if step["op"] != "test"])


def setting(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def removing(path: str) -> dict[str, Any]:
    return {"op": "remove", "path": path}


def annotation(name: str) -> str:
    return pointer("metadata", "annotations", f"fencepost.dev/{name}")


def label(name: str) -> str:
    return pointer("metadata", "labels", f"fencepost.dev/{name}")


def _deep_merge(base: Any, changes: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(changes, dict):
        return deepcopy(changes)
    return base | {key: _deep_merge(base.get(key), value) for key, value in changes.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One row of a table: who writes what on which task, and the part of the refusal that must be read."""

    name: str
    on: Callable[[World], Task]
    who: str
    write: Callable[[World, Task], Patch]
    refused: str = ""
    status: int = 422
    or_else: str = ""

    def __str__(self) -> str:
        return f"{self.who}: {self.name}"

    def run(self, world: World) -> None:
        """Carries it out. A refused write must have changed nothing."""
        task = self.on(world)
        before = world.stored(task.key.name)
        answer = world.send(self.who, task, self.write(world, task))
        if not self.refused:
            assert answer.ok, f"{answer.status} {answer.message}"
            return
        refuse(answer, self.refused, self.status, or_else=self.or_else)
        assert world.stored(task.key.name) == before


def refuse(answer: Answer, refused: str, status: int = 422, *, or_else: str = "") -> None:
    """The answer is a refusal that says so.

    Where two policies refuse, the API server tells of one of them, whichever comes first; `or_else` is what
    the other one says.
    """
    assert not answer.ok, f"it was taken: {_short(answer.body)}"
    assert refused in answer.message or (or_else and or_else in answer.message), answer.message
    assert answer.status == status or (or_else and answer.status in (403, 422)), answer.status


def _short(body: Any) -> str:
    return json.dumps(body)[:300]


@pytest.fixture(scope="module")
def world(cluster: Cluster) -> Iterator[World]:
    namespace = cluster.new_namespace("admission")
    tokens = {who: cluster.service_account(namespace, role, who) for who, role in ROLES.items()}  # type: ignore[arg-type]
    callers = {who: cluster.api_as(token) for who, token in tokens.items()} | {"admin": cluster.api}
    kubeconfigs = {
        who: str(cluster.kubeconfig_for(token, namespace=namespace)) for who, token in tokens.items()
    }
    yield World(namespace=namespace, callers=callers, kubeconfigs=kubeconfigs, cluster=cluster)
    cluster.delete_namespace(namespace)


__all__ = ["Hold", "LeaseEnd", "Outcome", "Reason", "Try", "World", "world"]
