"""Manifests for two judges: the library, and the API server behind kubectl. Both must say the same of each.

`LAWFUL` and `UNLAWFUL` are files as people write them; the sentence is what the library says of the latter.
"""

from __future__ import annotations

import json
from typing import Any, Final

JOB: Final = """\
apiVersion: fencepost.dev/v1alpha1
kind: FanOutJob
metadata:
  name: job
spec:
"""
TASK: Final = """\
apiVersion: fencepost.dev/v1alpha1
kind: LeasedTask
metadata:
  name: task
spec:
"""


def in_json(kind: str = "LeasedTask", **spec: Any) -> str:
    return json.dumps(
        {
            "apiVersion": "fencepost.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": kind.lower()},
            "spec": spec,
        }
    )


def after(template: str) -> str:
    return f"{JOB}  branches: [{{name: a}}]\n  continuation: {{template: {template}}}\n"


LAWFUL: Final[dict[str, str]] = {
    "one branch": JOB + "  branches: [{name: only}]\n",
    "a task of defaults": TASK + "  queue: feeds\n",
    "a task in JSON": in_json(queue="feeds", request={"a": [1, 2.5, None, {"b": True}]}),
    "numbers as floats": TASK + "  priority: 5.0\n  leaseDurationSeconds: 6e1\n",
    "octal and hexadecimal": TASK + "  leaseDurationSeconds: 0x3c\n  priority: 07\n",
    "odd names": in_json(
        "FanOutJob",
        branches=[
            {"name": name}
            for name in ('"test"', '\\"test\\"', "test", "Test", "あ", "い", "a/b", "a b", "\x01", "é" * 128)
        ],
    ),
    "long names that differ at the end": in_json(
        "FanOutJob", branches=[{"name": "k" * 69 + "1"}, {"name": "k" * 69 + "2"}]
    ),
    "a date is text": JOB + "  branches: [{name: 2020-01-01}, {name: 12:30:00}]\n",
    "quoted words": JOB + '  branches: [{name: "n"}, {name: "off"}, {name: "08"}]\n',
    "an anchor": JOB + "  branches: [{name: a, request: &r {x: 1}}, {name: b, request: *r}]\n",
    "a task after": after("{apiVersion: fencepost.dev/v1alpha1, kind: LeasedTask, spec: {queue: sum}}"),
    "a Job after": after(
        "{apiVersion: batch/v1, kind: Job, spec: {template: {spec: {containers: [{name: c}]}}}}"
    ),
    "everything": JOB
    + """\
  branches:
  - {name: a, request: {x: 1}}
  template:
    spec:
      queue: feeds
      priority: 9
      leaseDurationSeconds: 3600
      retryPolicy: {maxFailures: 0, backoffBaseSeconds: 1, backoffMaxSeconds: 86400}
      activeDeadlineSeconds: 31536000
      unknownPolicy: Reclaim
      dedupScope: Task
      external: true
  joinPolicy: AllSettled
  parallelism: 1024
  suspend: true
  activeDeadlineSeconds: 60
  ttlSecondsAfterFinished: 0
""",
    "1024 branches": in_json("FanOutJob", branches=[{"name": f"b{n}"} for n in range(1024)]),
}

RANGE: Final = "expected a whole number from 1 to 3600, got"
NAME: Final = "expected text of 1 to 256 characters, got"

UNLAWFUL: Final[dict[str, tuple[str, str]]] = {
    "no branches": (
        JOB + "  branches: []\n",
        "job.yaml: spec.branches: expected a list of 1 to 1024 entries, got a list of 0",
    ),
    "branches missing": (
        JOB + "  suspend: true\n",
        "job.yaml: spec.branches: missing; expected a list of 1 to 1024 entries",
    ),
    "1025 branches": (
        in_json("FanOutJob", branches=[{"name": f"b{n}"} for n in range(1025)]),
        "spec.branches: expected a list of 1 to 1024 entries, got a list of 1025",
    ),
    "brances": (
        JOB + "  brances: [{name: a}]\n",
        "job.yaml: spec.brances: there is no such field; did you mean branches?",
    ),
    "a branch without a name": (
        JOB + "  branches: [{name: a}, {request: {}}]\n",
        "job.yaml: spec.branches[1].name: missing; expected text of 1 to 256 characters",
    ),
    "an empty name": (JOB + '  branches: [{name: ""}]\n', f'spec.branches[0].name: {NAME} ""'),
    "300 characters of name": (
        in_json("FanOutJob", branches=[{"name": "a" * 300}]),
        f"spec.branches[0].name: {NAME} 300 characters",
    ),
    "258 bytes of name": (
        in_json("FanOutJob", branches=[{"name": "é" * 129}]),
        "spec.branches[0].name: it takes 258 bytes of UTF-8, over the limit of 256",
    ),
    "equal names": (
        JOB + "  branches: [{name: a}, {name: b}, {name: a}]\n",
        "spec.branches[2].name: 'a' is the name of branches[0] too",
    ),
    "a name that YAML takes for false": (
        JOB + "  branches: [{name: n}]\n",
        f"spec.branches[0].name: {NAME} false: quote it",
    ),
    "a name that YAML takes for a number": (
        JOB + "  branches: [{name: 08}]\n",
        f"spec.branches[0].name: {NAME} 8: quote it",
    ),
    "lease 0": (TASK + "  leaseDurationSeconds: 0\n", f"spec.leaseDurationSeconds: {RANGE} 0"),
    "lease -1": (TASK + "  leaseDurationSeconds: -1\n", f"spec.leaseDurationSeconds: {RANGE} -1"),
    "lease 30s": (TASK + "  leaseDurationSeconds: 30s\n", f'spec.leaseDurationSeconds: {RANGE} "30s"'),
    "lease 1e9": (TASK + "  leaseDurationSeconds: 1e9\n", f"spec.leaseDurationSeconds: {RANGE} 1000000000"),
    "lease 1.5": (TASK + "  leaseDurationSeconds: 1.5\n", f"spec.leaseDurationSeconds: {RANGE} 1.5"),
    "lease as text": (TASK + '  leaseDurationSeconds: "30"\n', f'spec.leaseDurationSeconds: {RANGE} "30"'),
    "lease yes": (TASK + "  leaseDurationSeconds: yes\n", f"spec.leaseDurationSeconds: {RANGE} true"),
    "suspend as text": (
        TASK + '  suspend: "true"\n',
        'spec.suspend: expected true or false, got "true"',
    ),
    "a request that is a list": (
        TASK + "  request: [1]\n",
        "spec.request: expected an object, got a list of 1",
    ),
    "a request that is text": (TASK + "  request: go\n", 'spec.request: expected an object, got "go"'),
    "a queue in capitals": (
        TASK + "  queue: Feeds\n",
        "spec.queue: expected text of 1 to 63 characters that match",
    ),
    "priority 10": (TASK + "  priority: 10\n", "spec.priority: expected a whole number from 0 to 9, got 10"),
    "51 failures": (
        TASK + "  retryPolicy: {maxFailures: 51}\n",
        "spec.retryPolicy.maxFailures: expected a whole number from 0 to 50, got 51",
    ),
    "another scope": (TASK + "  dedupScope: Job\n", 'spec.dedupScope: expected Task, got "Job"'),
    "another policy": (
        TASK + "  unknownPolicy: Retry\n",
        'spec.unknownPolicy: expected Hold or Reclaim, got "Retry"',
    ),
    "a request in the template": (
        JOB + "  branches: [{name: a}]\n  template: {spec: {request: {}}}\n",
        "spec.template.spec.request: there is no such field",
    ),
    "a Deployment after": (
        after("{apiVersion: apps/v1, kind: Deployment}"),
        "spec.continuation.template.kind: expected LeasedTask or FanOutJob or Job, got 'Deployment'",
    ),
    "a Job of another group after": (
        after("{apiVersion: apps/v1, kind: Job}"),
        "spec.continuation.template: apps/v1 Job cannot be a continuation, expected a LeasedTask",
    ),
    "a continuation without a kind": (
        after("{apiVersion: batch/v1, kynd: Job}"),
        "spec.continuation.template.kind: missing",
    ),
    "text for the spec of what comes after": (
        after("{apiVersion: fencepost.dev/v1alpha1, kind: LeasedTask, spec: x}"),
        'spec.continuation.template.spec: expected an object, got "x"',
    ),
    "no spec of what comes after": (
        after("{apiVersion: batch/v1, kind: Job}"),
        "spec.continuation.template.spec: missing; expected the spec of a batch/v1 Job",
    ),
    "text for the request of what comes after": (
        after("{apiVersion: fencepost.dev/v1alpha1, kind: LeasedTask, spec: {request: x}}"),
        'spec.continuation.template.spec.request: expected an object, got "x"',
    ),
    "text for a branch of what comes after": (
        after("{apiVersion: fencepost.dev/v1alpha1, kind: FanOutJob, spec: {branches: [x]}}"),
        "spec.continuation.template.spec.branches[0]: expected",
    ),
    "a list of annotations of what comes after": (
        after(
            "{apiVersion: fencepost.dev/v1alpha1, kind: LeasedTask, metadata: {annotations: [x]}, spec: {}}"
        ),
        "spec.continuation.template.metadata.annotations: expected keys with texts",
    ),
    "a number for a label of what comes after": (
        after("{apiVersion: fencepost.dev/v1alpha1, kind: LeasedTask, metadata: {labels: {a: 1}}, spec: {}}"),
        "spec.continuation.template.metadata.labels['a']: expected text",
    ),
    "text for the pods of what comes after": (
        after("{apiVersion: batch/v1, kind: Job, spec: {template: x}}"),
        "spec.continuation.template.spec.template: expected an object",
    ),
    "text for a container of what comes after": (
        after("{apiVersion: batch/v1, kind: Job, spec: {template: {spec: {containers: [x]}}}}"),
        "spec.continuation.template.spec.template.spec.containers: expected a list of objects",
    ),
    "an object for the volumes of what comes after": (
        after(
            "{apiVersion: batch/v1, kind: Job, spec: {template: {spec: {containers: [{name: c}], "
            "volumes: {a: 1}}}}}"
        ),
        "spec.continuation.template.spec.template.spec.volumes: expected a list of objects",
    ),
    "a name in capitals": (
        TASK.replace("name: task", "name: Task") + "  queue: a\n",
        "metadata.name: 'Task' is no object name",
    ),
    "metadata misspelt": (
        TASK.replace("  name: task", "  name: task\n  lables: {a: b}") + "  queue: a\n",
        "metadata.lables: there is no such field; did you mean labels?",
    ),
    "a label that is a number": (
        TASK.replace("  name: task", "  name: task\n  labels: {a: 1}") + "  queue: a\n",
        "metadata.labels['a']: expected text, got 1: quote it",
    ),
    "a lease in a new object": (
        TASK.replace("  name: task", '  name: task\n  annotations: {fencepost.dev/fencing-token: "7"}')
        + "  queue: a\n",
        "metadata.annotations['fencepost.dev/fencing-token']: a new object carries no lease: remove it",
    ),
    "spec misspelt": (
        TASK.replace("spec:", "sepc:") + "  queue: a\n",
        "sepc: there is no such field; did you",
    ),
    "no YAML": (TASK + "  queue: [a\n", "job.yaml: line "),
}

# What kubectl or the server lets pass and we do not: it would not mean what it looks like, or no schema can
# say it.
ONLY_OURS: Final[dict[str, tuple[str, str]]] = {
    "a key that stands twice": (
        TASK + "  queue: a\n  queue: b\n",
        "job.yaml: line 7: the key 'queue' stands twice (first on line 6)",
    ),
    "a large integer": (
        in_json(request={"n": 9007199254740993}),
        "spec.request: not representable as canonical JSON (RFC 8785)",
    ),
    "a key that YAML takes for false": (
        TASK + "  request: {n: 1}\n",
        "line 6: the key n is no text in YAML: quote it",
    ),
    "64 KiB and more of request": (
        in_json(request={"text": "x" * 65_536}),
        "spec.request: the request takes 65",
    ),
    "a deep request": (
        in_json(request=json.loads('{"a":' * 70 + "1" + "}" * 70)),
        "spec.request: nested deeper than 64 levels",
    ),
    "a misspelt field of what comes after": (
        after("{apiVersion: fencepost.dev/v1alpha1, kind: LeasedTask, spec: {qeue: x}}"),
        "job.yaml: spec.continuation.template.spec.qeue: there is no such field; did you mean queue?",
    ),
}
