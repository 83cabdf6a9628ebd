"""A FanOutJob: what may be asked for, what may change of it, and the operator's own writes to its status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fencepost.api.read import job_from_object
from fencepost.api.write import job_status_object
from fencepost.protocol import join, limits
from fencepost.protocol.job import BranchRecord, ContinuationKind, ContinuationRecord, Job, JobStatus
from fencepost.protocol.payload import sha256_hex
from fencepost.protocol.task import Outcome
from tests.cluster.admission_world import NOW, World, refuse, world
from tests.cluster.kube_api import JSON_PATCH, MERGE_PATCH, Answer

__all__ = ["world"]

THREE = [{"name": name, "request": {"a": 1}} for name in ("north", "south", "west")]
TASK_AFTER = {
    "template": {
        "apiVersion": "fencepost.dev/v1alpha1",
        "kind": "LeasedTask",
        "spec": {"queue": "sum", "request": {"a": 1}},
    }
}
POD = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}
JOB_AFTER = {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": POD}}}


def job_after(continuation: dict[str, Any] | None) -> dict[str, Any]:
    """A continuation that is a FanOutJob with a continuation of its own."""
    spec: dict[str, Any] = {"branches": [{"name": "x"}]}
    if continuation:
        spec["continuation"] = continuation
    return {"template": {"apiVersion": "fencepost.dev/v1alpha1", "kind": "FanOutJob", "spec": spec}}


def post(world: World, who: str, spec: Any) -> Answer:
    body = {
        "apiVersion": "fencepost.dev/v1alpha1",
        "kind": "FanOutJob",
        "metadata": {"name": world.new_name("job")},
        "spec": spec,
    }
    return world.request(who, "POST", world.path(plural="fanoutjobs"), body)


def created(world: World, **spec: Any) -> Job:
    answer = post(world, "person", {"branches": THREE} | spec)
    assert answer.status == 201, answer.message
    return job_from_object(answer.body)


def patch(world: World, who: str, job: Job, body: Any, suffix: str = "") -> Answer:
    kind = JSON_PATCH if isinstance(body, list) else MERGE_PATCH
    path = world.path(job.key.name, "fanoutjobs") + suffix
    return world.request(who, "PATCH", path, body, content_type=kind)


def stored(world: World, job: Job) -> Any:
    return world.request("admin", "GET", world.path(job.key.name, "fanoutjobs")).body


BAD_SPECS = [
    ("no branches", {"branches": []}, "spec.branches"),
    ("branches missing", {}, "spec.branches: Required value"),
    ("a branch without a name", {"branches": [{"request": {}}]}, "spec.branches[0].name: Required value"),
    ("an empty name", {"branches": [{"name": ""}]}, "spec.branches[0].name"),
    ("equal names", {"branches": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}, "branch names are unique"),
    ("257 characters of name", {"branches": [{"name": "a" * 257}]}, "spec.branches[0].name"),
    ("258 bytes of name", {"branches": [{"name": "é" * 129}]}, "a branch name takes at most 256 bytes"),
    ("a name that is no text", {"branches": [{"name": 5}]}, "spec.branches[0].name"),
    ("a request that is a list", {"branches": [{"name": "a", "request": []}]}, "spec.branches[0].request"),
    (
        "1025 branches",
        {"branches": [{"name": f"b{n}"} for n in range(limits.BRANCHES_MAX + 1)]},
        "spec.branches: Too many: 1025: must have at most 1024 items",
    ),
    ("parallelism 0", {"branches": THREE, "parallelism": 0}, "spec.parallelism"),
    ("parallelism 1025", {"branches": THREE, "parallelism": 1025}, "spec.parallelism"),
    ("another join policy", {"branches": THREE, "joinPolicy": "Quorum"}, "spec.joinPolicy"),
    ("a deadline of 0", {"branches": THREE, "activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds"),
    (
        "a lease of 0 in the template",
        {"branches": THREE, "template": {"spec": {"leaseDurationSeconds": 0}}},
        "spec.template.spec.leaseDurationSeconds",
    ),
    (
        "a continuation without a template",
        {"branches": THREE, "continuation": {"when": "Settled"}},
        "spec.continuation.template: Required value",
    ),
    (
        "a continuation without a kind",
        {"branches": THREE, "continuation": {"template": {"apiVersion": "batch/v1", "kynd": "Job"}}},
        "spec.continuation.template.kind: Required value",
    ),
    (
        "a Deployment after",
        {"branches": THREE, "continuation": {"template": {"apiVersion": "apps/v1", "kind": "Deployment"}}},
        "a continuation is a fencepost.dev/v1alpha1 LeasedTask or FanOutJob, or a batch/v1 Job",
    ),
    (
        "a Job of another group after",
        {"branches": THREE, "continuation": {"template": {"apiVersion": "x.dev/v1", "kind": "Job"}}},
        "a continuation is a fencepost.dev/v1alpha1 LeasedTask",
    ),
    (
        "a continuation when it likes",
        {"branches": THREE, "continuation": TASK_AFTER | {"when": "Later"}},
        "spec.continuation.when",
    ),
]


AFTER = "spec.continuation.template"


def after(kind: str, spec: Any, **more: Any) -> dict[str, Any]:
    """A template of this kind, whatever it looks like."""
    version = "batch/v1" if kind == "Job" else "fencepost.dev/v1alpha1"
    return {"apiVersion": version, "kind": kind, **({} if spec is None else {"spec": spec}), **more}


BAD_TEMPLATES = [
    ("no spec", after("LeasedTask", None), f"{AFTER}.spec is missing"),
    ("a spec that is text", after("LeasedTask", "x"), f"{AFTER}.spec"),
    ("metadata in a list", after("LeasedTask", {}, metadata=["x"]), f"{AFTER}.metadata"),
    ("a list of annotations", after("LeasedTask", {}, metadata={"annotations": ["x"]}), f"{AFTER}.metadata"),
    ("a number for a label", after("LeasedTask", {}, metadata={"labels": {"a": 1}}), f"{AFTER}.metadata"),
    ("a request that is text", after("LeasedTask", {"request": "x"}), f"{AFTER}.spec.request"),
    ("no branches", after("FanOutJob", {}), f"{AFTER}.spec.branches"),
    ("a branch that is text", after("FanOutJob", {"branches": ["x"]}), f"{AFTER}.spec.branches"),
    (
        "a request of a branch that is text",
        after("FanOutJob", {"branches": [{"name": "x", "request": "x"}]}),
        f"{AFTER}.spec.branches",
    ),
    ("a Job without pods", after("Job", {}), f"{AFTER}.spec.template.spec"),
    ("pods that are text", after("Job", {"template": "x"}), f"{AFTER}.spec.template.spec"),
    ("a pod that is text", after("Job", {"template": {"spec": "x"}}), f"{AFTER}.spec.template.spec"),
    (
        "a container that is text",
        after("Job", {"template": {"spec": {"containers": ["x"]}}}),
        f"{AFTER}.spec.template.spec",
    ),
    (
        "volumes that are an object",
        after("Job", {"template": {"spec": {"containers": [], "volumes": {"a": 1}}}}),
        f"{AFTER}.spec.template.spec",
    ),
]


@pytest.mark.parametrize(
    ("name", "template", "refused"), BAD_TEMPLATES, ids=[row[0] for row in BAD_TEMPLATES]
)
def test_a_template_that_nothing_can_be_made_of_is_refused_before_it_is_stored(
    world: World, name: str, template: Any, refused: str
) -> None:
    refuse(post(world, "person", {"branches": THREE, "continuation": {"template": template}}), refused)


@pytest.mark.parametrize(("name", "spec", "refused"), BAD_SPECS, ids=[row[0] for row in BAD_SPECS])
def test_a_bad_spec_is_refused_with_its_place(world: World, name: str, spec: Any, refused: str) -> None:
    for who in ("person", "operator", "admin"):
        refuse(post(world, who, spec), refused)


ODD_NAMES = [
    '"test"',
    '\\"test\\"',
    "test",
    "Test",
    "あ",
    "い",
    "a/b",
    "a b",
    "\x01",
    "é" * 128,
    "a" * 256,
    "k" * 69 + "1",
    "k" * 69 + "2",
    "<&>",
]

GOOD_SPECS = [
    ("one branch", {"branches": [{"name": "only"}]}),
    ("odd names", {"branches": [{"name": name} for name in ODD_NAMES]}),
    ("1024 branches", {"branches": [{"name": f"b{n}"} for n in range(limits.BRANCHES_MAX)]}),
    ("a LeasedTask after", {"branches": THREE, "continuation": TASK_AFTER}),
    ("a FanOutJob after", {"branches": THREE, "continuation": job_after(None)}),
    ("a Job after", {"branches": THREE, "continuation": JOB_AFTER}),
    (
        "labels and annotations after",
        {
            "branches": THREE,
            "continuation": {
                "template": TASK_AFTER["template"] | {"metadata": {"labels": {"a": "b"}, "annotations": {}}}
            },
        },
    ),
    ("everything", {"branches": THREE, "parallelism": 2, "suspend": True, "ttlSecondsAfterFinished": 0}),
]


@pytest.mark.parametrize(("name", "spec"), GOOD_SPECS, ids=[row[0] for row in GOOD_SPECS])
def test_a_lawful_spec_is_taken(world: World, name: str, spec: Any) -> None:
    answer = post(world, "person", spec)
    assert answer.status == 201, answer.message
    assert [branch.name for branch in job_from_object(answer.body).spec.branches] == [
        branch["name"] for branch in spec["branches"]
    ]


MAY_NOT = "may not create jobs in"
NESTED = "a continuation that is a FanOutJob may have its own continuation only if you may create jobs"


@pytest.fixture(scope="module")
def person_without_jobs(world: World) -> str:
    """Somebody who may make FanOutJobs and no Jobs; the role edit has both."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    name = "only-fanoutjobs"
    rules = [{"apiGroups": ["fencepost.dev"], "resources": ["fanoutjobs"], "verbs": ["*"]}]
    space = f"{rbac}/namespaces/{world.namespace}"
    made = world.request("admin", "POST", f"{space}/roles", {"metadata": {"name": name}, "rules": rules})
    assert made.ok, made.message
    token = world.cluster.service_account(world.namespace, "view", name)
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": world.namespace}],
    }
    assert world.request("admin", "POST", f"{space}/rolebindings", binding).ok
    world.callers[name] = world.cluster.api_as(token)
    wait_until_allowed(world, name)
    return name


def wait_until_allowed(world: World, who: str) -> None:
    """A binding takes a moment to have its effect; a dry run tells."""
    path = world.path(plural="fanoutjobs") + "?dryRun=All"
    body = {
        "apiVersion": "fencepost.dev/v1alpha1",
        "kind": "FanOutJob",
        "metadata": {"name": "try"},
        "spec": {"branches": THREE},
    }
    for _ in range(500):
        answer = world.request(who, "POST", path, body)
        if answer.ok:
            return
    raise AssertionError(answer.message)


@pytest.mark.parametrize(
    ("name", "continuation", "refused"),
    [
        ("a Job", JOB_AFTER, MAY_NOT),
        ("a FanOutJob and then a Job", job_after(JOB_AFTER), NESTED),
        ("two FanOutJobs and then a Job", job_after(job_after(JOB_AFTER)), NESTED),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_who_may_not_create_jobs_cannot_have_the_operator_do_it(
    world: World, person_without_jobs: str, name: str, continuation: Any, refused: str
) -> None:
    spec = {"branches": THREE, "continuation": continuation}
    refuse(post(world, person_without_jobs, spec), refused, 403)
    for who in ("person", "operator", "admin"):
        answer = post(world, who, spec)
        assert answer.status == 201, answer.message


def test_who_may_not_create_jobs_may_still_ask_for_tasks_after(
    world: World, person_without_jobs: str
) -> None:
    for continuation in (TASK_AFTER, job_after(None)):
        answer = post(world, person_without_jobs, {"branches": THREE, "continuation": continuation})
        assert answer.status == 201, answer.message


def test_a_job_cannot_be_slipped_in_later(world: World, person_without_jobs: str) -> None:
    answer = post(world, person_without_jobs, {"branches": THREE, "continuation": TASK_AFTER})
    job = job_from_object(answer.body)
    refuse(patch(world, person_without_jobs, job, {"spec": {"continuation": JOB_AFTER}}), "immutable")


CHANGES = [
    (
        "a key in a request is renamed",
        [{"op": "move", "from": "/spec/branches/0/request/a", "path": "/spec/branches/0/request/b"}],
    ),
    ("a request is replaced", [{"op": "replace", "path": "/spec/branches/1/request", "value": {"b": 2}}]),
    ("a value in a request", [{"op": "replace", "path": "/spec/branches/0/request/a", "value": 2}]),
    ("one branch more", [{"op": "add", "path": "/spec/branches/-", "value": {"name": "east"}}]),
    ("one branch less", [{"op": "remove", "path": "/spec/branches/0"}]),
    ("another name", [{"op": "replace", "path": "/spec/branches/0/name", "value": "east"}]),
    (
        "a key of the continuation is renamed",
        [
            {
                "op": "move",
                "from": "/spec/continuation/template/spec/request/a",
                "path": "/spec/continuation/template/spec/request/b",
            }
        ],
    ),
    ("the continuation goes", [{"op": "remove", "path": "/spec/continuation"}]),
    ("when it runs", [{"op": "replace", "path": "/spec/continuation/when", "value": "Failed"}]),
    ("the queue", [{"op": "replace", "path": "/spec/template/spec/queue", "value": "other"}]),
    ("the deadline", [{"op": "add", "path": "/spec/activeDeadlineSeconds", "value": 5}]),
    ("the time to live", [{"op": "add", "path": "/spec/ttlSecondsAfterFinished", "value": 5}]),
]


@pytest.mark.parametrize(("name", "body"), CHANGES, ids=[row[0] for row in CHANGES])
def test_what_a_job_asks_for_is_immutable(world: World, name: str, body: Any) -> None:
    job = created(world, continuation=TASK_AFTER)
    before = stored(world, job)
    for who in ("person", "operator", "admin"):
        refuse(patch(world, who, job, body), "immutable")
    assert stored(world, job) == before


def test_the_field_that_may_not_change_is_named(world: World) -> None:
    job = created(world)
    answer = patch(world, "person", job, {"spec": {"template": {"spec": {"queue": "other"}}}})
    refuse(answer, "spec.template is immutable: make another object instead")


def test_suspend_parallelism_and_the_order_of_branches_may_change(world: World) -> None:
    job = created(world)
    for body in (
        {"spec": {"suspend": True}},
        {"spec": {"suspend": False, "parallelism": 2}},
        {"spec": {"parallelism": None}},
        {"spec": {"branches": THREE[::-1]}},
    ):
        answer = patch(world, "person", job, body)
        assert answer.ok, answer.message
    again = patch(world, "person", job, {"spec": {"suspend": True}})
    assert again.ok
    assert again.body["metadata"]["generation"] > 1


def test_nobody_but_the_operator_writes_the_status(world: World) -> None:
    job = created(world)
    for who in ("person", "w1", "viewer"):
        answer = patch(world, who, job, {"status": {"created": 1}}, "/status")
        refuse(answer, "cannot patch resource", 403)
    assert patch(world, "operator", job, {"status": {"created": 1}}, "/status").ok


# The statuses that the operator writes, by the product's own functions.


def record(value: str = "done") -> BranchRecord:
    return BranchRecord(
        outcome=Outcome.OK, payload_sha256=sha256_hex(value), receipt_sha256="a" * 64, value=value
    )


def status_of(job: Job, names: list[str], **fields: Any) -> JobStatus:
    return JobStatus(created=len(job.spec.branches), branches={name: record() for name in names}, **fields)


def joined(job: Job) -> JobStatus:
    status = status_of(job, ["north", "south", "west"])
    snapshot = join.Snapshot(generation=1, digest=join.snapshot_digest(status.branches), committed_time=NOW)
    status = replace(status, snapshot=snapshot, state=join.job_state(status.branches))
    return replace(status, conditions=join.conditions(job, status, {}))


def write(world: World, job: Job, status: JobStatus | dict[str, Any], who: str = "operator") -> Answer:
    """A whole status, written as the operator writes it: by merge patch."""
    whole = status if isinstance(status, dict) else job_status_object(status, now=NOW, previous=None)
    return patch(world, who, job, {"status": whole}, "/status")


def test_the_operator_joins_a_job(world: World) -> None:
    job = created(world, continuation=TASK_AFTER)
    record_of = ContinuationRecord(kind=ContinuationKind.LEASED_TASK, name="x-then", uid="u-1")
    for status in (
        JobStatus(created=2),
        status_of(job, ["north"]),
        status_of(job, ["north", "west"]),
        joined(job),
        replace(joined(job), continuation=record_of),
        replace(joined(job), continuation=replace(record_of, started=True)),
    ):
        answer = write(world, job, status)
        assert answer.ok, answer.message
        kept = job_from_object(answer.body).status
        assert (kept.branches, kept.snapshot, kept.continuation) == (
            status.branches,
            status.snapshot,
            status.continuation,
        )
    answer = patch(world, "person", job, {"spec": {"suspend": True}})
    assert answer.ok, answer.message


def test_a_branch_whose_task_was_deleted_is_recorded_without_a_receipt(world: World) -> None:
    job = created(world)
    status = JobStatus(created=3, branches={"north": join.TASK_DELETED})
    assert write(world, job, status).ok


FIRST_WRITES = [
    ("more created than there are", {"created": 4}, "status.created is at most the number of branches"),
    ("a branch that spec has not", {"branches": {"east": {}}}, "status.branches names only branches of spec"),
    (
        "a state without a snapshot",
        {"state": "Succeeded"},
        "state and snapshot are written together",
    ),
    (
        "a snapshot without a state",
        {"snapshot": {"generation": 1, "digest": "a" * 64, "committedTime": NOW}},
        "state and snapshot are written together",
    ),
    (
        "a snapshot without the branches",
        {"state": "Succeeded", "snapshot": {"generation": 1, "digest": "a" * 64, "committedTime": NOW}},
        "the snapshot needs every branch of spec settled, and no other",
    ),
    (
        "a continuation before the snapshot",
        {"continuation": {"kind": "LeasedTask", "name": "x", "uid": "u"}},
        "there is no continuation before the snapshot",
    ),
    ("a value of 1025", {"branches": {"north": {"value": "x" * 1025}}}, "value"),
    ("a value of 1026 bytes", {"branches": {"north": {"value": "é" * 513}}}, "at most 1024 bytes of UTF-8"),
    ("a hash that is none", {"branches": {"north": {"payloadSha256": "x"}}}, "payloadSha256"),
    ("an outcome that there is not", {"branches": {"north": {"outcome": "Maybe"}}}, "outcome"),
]


@pytest.mark.parametrize(("name", "status", "refused"), FIRST_WRITES, ids=[row[0] for row in FIRST_WRITES])
def test_a_status_that_is_not_so_is_refused(
    world: World, name: str, status: dict[str, Any], refused: str
) -> None:
    job = created(world)
    whole = {"outcome": "Ok", "payloadSha256": "b" * 64, "receiptSha256": "a" * 64}
    branches = {branch: whole | fields for branch, fields in status.get("branches", {}).items()}
    refuse(write(world, job, status | {"branches": branches}), refused)


LATER_WRITES = [
    ("created falls", {"created": 1}, "status.created never falls"),
    ("a record changes", {"branches": {"north": {"value": "x"}}}, "a settled branch is never changed"),
    ("a record gets a reason", {"branches": {"north": {"reason": "Cancelled"}}}, "a settled branch is never"),
    ("a record goes", {"branches": {"north": None}}, "a settled branch is never changed or removed"),
    ("all records go", {"branches": None}, "a settled branch is never changed or removed"),
]


@pytest.mark.parametrize(("name", "status", "refused"), LATER_WRITES, ids=[row[0] for row in LATER_WRITES])
@pytest.mark.parametrize("who", ["operator", "admin"])
def test_what_is_recorded_stays(
    world: World, who: str, name: str, status: dict[str, Any], refused: str
) -> None:
    job = created(world)
    assert write(world, job, status_of(job, ["north"])).ok
    before = stored(world, job)
    refuse(write(world, job, status, who), refused)
    assert stored(world, job) == before


AFTER_JOIN = [
    ("another digest", {"snapshot": {"digest": "b" * 64}}, "the snapshot never changes"),
    ("another generation", {"snapshot": {"generation": 2}}, "the snapshot never changes"),
    ("another time", {"snapshot": {"committedTime": "2030-01-01T00:00:00Z"}}, "the snapshot never changes"),
    ("no snapshot", {"snapshot": None}, "the snapshot never changes"),
    ("another state", {"state": "Failed"}, "the job is joined: branches, state and created stay"),
    ("running again", {"state": "Running", "snapshot": None}, "the snapshot never changes"),
    ("no continuation", {"continuation": None}, "status.continuation is written once"),
    ("another uid", {"continuation": {"uid": "u-2"}}, "status.continuation is written once"),
    ("an empty uid", {"continuation": {"uid": ""}}, "status.continuation.uid"),
    ("another name", {"continuation": {"name": "y"}}, "status.continuation is written once"),
    ("another kind", {"continuation": {"kind": "Job"}}, "status.continuation is written once"),
    ("not started after all", {"continuation": {"started": False}}, "a continuation that was started stays"),
]


@pytest.mark.parametrize(("name", "status", "refused"), AFTER_JOIN, ids=[row[0] for row in AFTER_JOIN])
@pytest.mark.parametrize("who", ["operator", "admin"])
def test_what_is_joined_is_final(world: World, who: str, name: str, status: Any, refused: str) -> None:
    job = created(world, continuation=TASK_AFTER)
    record_of = ContinuationRecord(kind=ContinuationKind.LEASED_TASK, name="x", uid="u-1", started=True)
    answer = write(world, job, replace(joined(job), continuation=record_of))
    assert answer.ok, answer.message
    before = stored(world, job)
    refuse(write(world, job, status, who), refused)
    assert stored(world, job) == before


@pytest.mark.parametrize("who", ["operator", "admin"])
def test_the_status_of_a_joined_job_cannot_be_removed(world: World, who: str) -> None:
    job = created(world)
    assert write(world, job, joined(job)).ok
    before = stored(world, job)
    for body in ({"status": None}, [{"op": "remove", "path": "/status"}]):
        answer = patch(world, who, job, body, "/status")
        assert answer.status == 422, answer.body
    bare = {key: value for key, value in before.items() if key != "status"}
    path = world.path(job.key.name, "fanoutjobs") + "/status"
    assert world.request(who, "PUT", path, bare).status == 422
    assert stored(world, job) == before


def test_inline_values_have_a_limit_together(world: World) -> None:
    branches = [{"name": f"b{n:04}"} for n in range(limits.INLINE_VALUES_BYTES_MAX // 1024 + 1)]
    job = created(world, branches=branches)
    names = [branch["name"] for branch in branches]
    at_limit = JobStatus(branches={name: record("x" * 1024) for name in names[:-1]})
    answer = write(world, job, at_limit)
    assert answer.ok, answer.message
    over = JobStatus(branches=dict(at_limit.branches) | {names[-1]: record("x")})
    refuse(write(world, job, over), "the inline values of a job take at most 131072 bytes together")
    by_reference = replace(record("x"), value=None, value_ref="some-task")
    assert write(world, job, JobStatus(branches=dict(at_limit.branches) | {names[-1]: by_reference})).ok
