"""People and Kubernetes' own controllers still can do their work, and what they see reads well."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fencepost.api.read import job_from_object, task_from_object
from fencepost.api.write import task_object
from fencepost.ports import NewTask
from fencepost.protocol import limits
from fencepost.protocol.fanout import child_task
from fencepost.protocol.task import Kind, ObjectKey, Owner, Task, TaskSpec
from tests.cluster.admission_world import World, main_merge, ours, patch_of, refuse, world
from tests.cluster.kube_api import APPLY_PATCH
from tests.cluster.kubectl import run_kubectl

__all__ = ["world"]

COLLECTED_SECONDS_MAX = 60.0


def as_person(world: World, *arguments: str, input: str | None = None, who: str = "person") -> str:
    """What kubectl prints for a person with the role edit."""
    done = run_kubectl(
        world.cluster.kubectl_program, Path(world.kubeconfigs[who]), *arguments, input=input, check=True
    )
    return done.stdout


def manifest(name: str, **spec: Any) -> str:
    body = {
        "apiVersion": "fencepost.dev/v1alpha1",
        "kind": "LeasedTask",
        "metadata": {"name": name},
        "spec": {"queue": "feeds", "request": {"feed": "north", "parts": [1, 2.5, {"a": "b"}]}} | spec,
    }
    return json.dumps(body)


def job_manifest(name: str, **spec: Any) -> str:
    body = {
        "apiVersion": "fencepost.dev/v1alpha1",
        "kind": "FanOutJob",
        "metadata": {"name": name},
        "spec": {"branches": [{"name": "a", "request": {"x": 1}}, {"name": "b"}]} | spec,
    }
    return json.dumps(body)


def until(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + COLLECTED_SECONDS_MAX
    while not check():
        assert time.monotonic() < deadline, f"waited {COLLECTED_SECONDS_MAX:.0f} s until {what}"
        time.sleep(0.05)


@pytest.mark.parametrize("make", [manifest, job_manifest], ids=["LeasedTask", "FanOutJob"])
def test_apply_twice_says_unchanged(world: World, make: Callable[[str], str]) -> None:
    text = make(world.new_name("apply"))
    assert "created" in as_person(world, "apply", "--filename", "-", input=text)
    assert "unchanged" in as_person(world, "apply", "--filename", "-", input=text)
    assert "serverside-applied" in as_person(
        world, "apply", "--server-side", "--force-conflicts", "--filename", "-", input=text
    )


def test_apply_leaves_a_lease_alone(world: World) -> None:
    name = world.new_name("held")
    text = manifest(name)
    as_person(world, "apply", "--filename", "-", input=text)
    task = task_from_object(world.stored(name))
    held = world.done("w1", world.claim(task), task)
    assert "unchanged" in as_person(world, "apply", "--filename", "-", input=text)
    answer = world.request(
        "person",
        "PATCH",
        world.path(name) + "?fieldManager=me&force=true",
        json.loads(text),
        content_type=APPLY_PATCH,
    )
    assert answer.ok, answer.message
    assert task_from_object(answer.body).holder == held.holder
    settled = world.done("w1", world.submit(held, world.receipt(held)), held)
    assert "unchanged" in as_person(world, "apply", "--filename", "-", input=text)
    assert settled.settled


def test_a_person_suspends_marks_and_deletes(world: World) -> None:
    for standing in (world.free, world.held, world.settled, lambda: world.unknown(held=False)):
        task = standing()
        for body in (
            {"spec": {"suspend": True}},
            {"spec": {"suspend": False, "priority": 9}},
            {"metadata": {"labels": {"team": "north"}, "annotations": {"team/note": "x"}}},
        ):
            answer = world.request(
                "person",
                "PATCH",
                world.path(task.key.name),
                body,
                content_type="application/merge-patch+json",
            )
            assert answer.ok, answer.message
        whole = world.stored(task.key.name)
        assert world.request("person", "PUT", world.path(task.key.name), whole).ok
        assert world.request("person", "DELETE", world.path(task.key.name)).ok


def test_a_suspended_task_that_is_held_goes_on(world: World) -> None:
    task = world.held()
    assert world.send("person", task, main_merge(spec={"suspend": True})).ok
    task = world.done("w1", world.heartbeat(task), task)
    assert world.done("w1", world.submit(task, world.receipt(task)), task).settled


def test_a_viewer_only_looks(world: World) -> None:
    task = world.held()
    for suffix in ("", "/status"):
        assert world.request("viewer", "GET", world.path(task.key.name) + suffix).ok
    refuse(world.send("viewer", task, patch_of(world.heartbeat(task))), "cannot patch resource", 403)
    assert world.request("viewer", "DELETE", world.path(task.key.name)).status == 403
    assert world.request("viewer", "GET", world.path(plural="fanoutjobs")).ok


def test_a_person_writes_no_status(world: World) -> None:
    task = world.held()
    patch = patch_of(world.submit(task, world.receipt(task)))
    refuse(world.send("person", task, patch), 'cannot patch resource "leasedtasks/status"', 403)


def test_an_exported_task_can_be_made_again_once_its_lease_is_stripped(world: World) -> None:
    task = world.settled()
    exported = world.stored(task.key.name)
    assert world.request("person", "DELETE", world.path(task.key.name)).ok
    for name in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"):
        exported["metadata"].pop(name)
    refuse(world.request("person", "POST", world.path(), exported), "a new LeasedTask carries no lease")
    exported["metadata"].pop("annotations")
    exported["metadata"].pop("labels")
    again = world.request("person", "POST", world.path(), exported)
    assert again.status == 201, again.message
    assert again.body["status"]["state"] == "Open"


# The garbage collector.


def owned_child(world: World, owner: Owner) -> Task:
    """A held task that is owned, as a child of a job is."""
    key = ObjectKey(namespace=world.namespace, name=world.new_name("child"))
    new = NewTask(key=key, spec=TaskSpec(), owner=owner, branch="a")
    answer = world.request("operator", "POST", world.path(), task_object(new))
    assert answer.ok, answer.message
    task = task_from_object(answer.body)
    return world.done("w1", world.claim(task), task)


@pytest.mark.parametrize("propagation", ["Foreground", "Background", "Orphan"])
def test_the_garbage_collector_does_its_work(world: World, propagation: str) -> None:
    name = world.new_name("owner")
    made = world.request("person", "POST", world.path(plural="fanoutjobs"), json.loads(job_manifest(name)))
    owner = Owner(kind="FanOutJob", name=name, uid=made.body["metadata"]["uid"])
    child = owned_child(world, owner)
    path = world.path(name, "fanoutjobs")
    answer = world.request("person", "DELETE", path, {"propagationPolicy": propagation})
    assert answer.ok, answer.message
    until(lambda: world.request("admin", "GET", path).status == 404, f"{name} is gone")
    if propagation == "Orphan":
        kept = world.stored(child.key.name)
        assert "ownerReferences" not in kept["metadata"]
        assert task_from_object(kept).holder == child.holder
        return
    gone = world.path(child.key.name)
    until(lambda: world.request("admin", "GET", gone).status == 404, f"{child.key} is gone")


def test_a_namespace_with_held_tasks_goes(world: World) -> None:
    """No finalizers anywhere, so nothing has to run for it."""
    namespace = world.cluster.new_namespace("going")
    token = world.cluster.service_account(namespace, "edit", "person")
    there = world.cluster.api_as(token)
    path = f"/apis/fencepost.dev/v1alpha1/namespaces/{namespace}/leasedtasks"
    assert there.request("POST", path, json.loads(manifest("a"))).ok
    world.cluster.delete_namespace(namespace)
    until(
        lambda: world.request("admin", "GET", f"/api/v1/namespaces/{namespace}").status == 404,
        f"namespace {namespace} is gone",
    )


# What people see.


def test_explain_describes_every_field(world: World) -> None:
    for kind in ("leasedtask", "fanoutjob"):
        text = as_person(world, "explain", kind, "--recursive")
        assert "retryPolicy" in text
        for field in ("spec", "status"):
            told = as_person(world, "explain", f"{kind}.{field}")
            assert "<no description>" not in told
            assert "DESCRIPTION:" in told
    receipts = as_person(world, "explain", "lt.status.receipts")
    assert "SHA-256 of exactly the bytes of value." in receipts
    assert "<no description>" not in receipts
    lease = as_person(world, "explain", "lt.spec.leaseDurationSeconds")
    assert "revoked" in lease


def table(text: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in text.strip().splitlines()]


def test_the_columns_say_who_holds_what(world: World) -> None:
    task = world.held(queue="columns")
    header, row = table(as_person(world, "get", "lt", task.key.name))
    assert header == ["NAME", "QUEUE", "STATE", "HOLD", "TOKEN", "AGE"]
    assert row[:5] == [task.key.name, "columns", "Open", "Leased", "1"]
    header, row = table(as_person(world, "get", "leasedtasks", task.key.name, "--output", "wide"))
    assert header[5:] == ["AGE", "PRIORITY", "HOLDER", "FAILURES", "PROGRESS", "RECEIPTS"]
    assert task.holder in row
    assert task.key.name in as_person(world, "get", "fencepost")


def test_the_columns_of_a_job_have_its_sentence(world: World) -> None:
    name = world.new_name("shown")
    as_person(world, "create", "--filename", "-", input=job_manifest(name))
    header, row = table(as_person(world, "get", "foj", name))
    assert header == ["NAME", "STATE", "TASKS", "MESSAGE", "AGE"]
    assert row[:4] == [name, "Running", "0", "not settled yet"]


def names_by(world: World, *selectors: str) -> set[str]:
    arguments = ["get", "leasedtasks", "--output", "name"]
    for selector in selectors:
        flag = "--selector" if selector.startswith("!") else "--field-selector"
        arguments += [flag, selector]
    listed = as_person(world, *arguments)
    return {line.partition("/")[2] for line in listed.split()}


def test_tasks_are_found_by_their_fields(world: World) -> None:
    queue = f"q-{next(world.numbers)}"
    plain = world.free(queue=queue)
    urgent = world.free(queue=queue, priority=9)
    external = world.free(queue=queue, external=True)
    suspended = world.free(queue=queue, suspend=True)
    held = world.held(queue=queue)
    settled = world.held(queue=queue)
    settled = world.done("w1", world.submit(settled, world.receipt(settled)), settled)

    def found(*selectors: str) -> set[str]:
        fields = [selector for selector in selectors if not selector.startswith("!")]
        labels = [selector for selector in selectors if selector.startswith("!")]
        return names_by(world, ",".join([f"spec.queue={queue}", *fields]), *labels)

    everything = {task.key.name for task in (plain, urgent, external, suspended, held, settled)}
    assert found() == everything
    assert found("spec.priority=9") == {urgent.key.name}
    assert found("spec.external=true") == {external.key.name}
    assert found("spec.suspend=true") == {suspended.key.name}
    assert found("status.state=Succeeded") == {settled.key.name}
    assert found("status.settled=false") == everything - {settled.key.name}
    claimable = found(
        "spec.suspend=false", "spec.external=false", "status.settled=false", "!fencepost.dev/hold"
    )
    assert claimable == {plain.key.name, urgent.key.name}


def test_wait_sees_a_task_succeed(world: World) -> None:
    task = world.settled()
    as_person(world, "wait", "--for=condition=Succeeded", "--timeout=5s", f"lt/{task.key.name}")


def test_the_admin_of_a_namespace_may_do_what_an_editor_may(world: World) -> None:
    token = world.cluster.service_account(world.namespace, "admin", "lead")
    lead = world.cluster.api_as(token)
    name = world.new_name("lead")
    assert lead.request("POST", world.path(), json.loads(manifest(name))).status == 201
    assert lead.request("DELETE", world.path(name)).ok
    held = world.held()
    patch = patch_of(world.submit(held, world.receipt(held)))
    path = world.path(held.key.name) + "/status"
    assert lead.request("PATCH", path, patch.body, content_type=patch.content_type).status == 403


# B03: sizes around kubectl's limit for its annotation.


@pytest.mark.parametrize("size", [100_000, 200_000, 261_000, 270_000])
def test_a_large_spec_is_taken_or_refused_and_can_be_deleted(world: World, size: int) -> None:
    """Branches of 60 KB each; client-side apply ends at 262,144 bytes, and says so, server-side does not."""
    piece = 60_000
    branches = [
        {"name": f"b{start}", "request": {"text": "x" * min(piece, size - start)}}
        for start in range(0, size, piece)
    ]
    name = world.new_name("large")
    text = job_manifest(name, branches=branches)
    arguments = ["apply", "--filename", "-"]
    client_side = size < 262_144
    if not client_side:
        refused = run_kubectl_quietly(world, *arguments, input=text)
        assert "262144" in refused
        arguments.append("--server-side")
    as_person(world, *arguments, input=text)
    before = annotation_bytes(world, name)
    as_person(world, *arguments, input=text)
    assert annotation_bytes(world, name) == before
    started = time.monotonic()
    as_person(world, "delete", "foj", name, "--wait", "--timeout=10s")
    assert time.monotonic() - started < 10


def run_kubectl_quietly(world: World, *arguments: str, input: str) -> str:
    done = run_kubectl(
        world.cluster.kubectl_program,
        Path(world.kubeconfigs["person"]),
        *arguments,
        input=input,
        check=False,
    )
    assert done.returncode != 0
    return done.stderr


def annotation_bytes(world: World, name: str) -> int:
    whole = world.request("admin", "GET", world.path(name, "fanoutjobs")).body
    return sum(len(key) + len(text) for key, text in whole["metadata"].get("annotations", {}).items())


def test_a_child_carries_its_branch_and_its_job(world: World) -> None:
    """What the operator makes for a branch is taken, and a branch name of 256 bytes fits beside it."""
    name = world.new_name("parent")
    body = json.loads(job_manifest(name, branches=[{"name": "é" * 128, "request": {"x": 1}}]))
    job = job_from_object(world.request("person", "POST", world.path(plural="fanoutjobs"), body).body)
    child = child_task(job, job.spec.branches[0])
    answer = world.request("operator", "POST", world.path(), task_object(child))
    assert answer.status == 201, answer.message
    stored = task_from_object(answer.body)
    assert (stored.branch, stored.owner, stored.spec) == (child.branch, child.owner, child.spec)
    assert answer.body["metadata"]["labels"] == ours(job_uid=job.uid)


def test_every_limit_at_once_fits_an_object(world: World) -> None:
    """A task with the longest request, value and rows takes less than the largest object."""
    task = world.held(request=json.dumps({"text": "x" * (limits.REQUEST_BYTES_MAX - 15)}))
    for place in range(limits.ROWS_BYTES_MAX // limits.VALUE_BYTES_MAX):
        row = world.receipt(task, kind=Kind.ROW, value=f"{place}".ljust(limits.VALUE_BYTES_MAX, "x"))
        task = world.done("w1", world.submit(task, row), task)
    last = world.receipt(task, value="y" * limits.VALUE_BYTES_MAX)
    settled = world.done("w1", world.submit(task, last), task)
    assert settled.settled
    assert len(json.dumps(world.stored(task.key.name))) < limits.OBJECT_BYTES_MAX
