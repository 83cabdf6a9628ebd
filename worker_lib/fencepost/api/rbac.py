"""The ClusterRoles: what a worker, the operator and people may do.

The worker rules of `policies` hold for whoever may patch leasedtasks and not update them, so the two verbs
are what tells a worker from everybody else: do not give a worker `update`. None of the people's roles writes
a status; receipts come from workers and the operator alone.
"""

from __future__ import annotations

from typing import Any, Final

from fencepost.api.names import FAN_OUT_JOBS, LEASED_TASKS
from fencepost.protocol.limits import GROUP

READ: Final = ("get", "list", "watch")
CHANGE: Final = ("create", "update", "patch", "delete", "deletecollection")
AGGREGATE: Final = "rbac.authorization.k8s.io/aggregate-to-"


def _rule(group: str, resources: tuple[str, ...], verbs: tuple[str, ...]) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}


def _role(name: str, rules: list[dict[str, Any]], *, aggregate_to: tuple[str, ...] = ()) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if aggregate_to:
        metadata["labels"] = {f"{AGGREGATE}{role}": "true" for role in aggregate_to}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": metadata,
        "rules": rules,
    }


def roles() -> list[dict[str, Any]]:
    """All ClusterRoles, in the order in which they are written."""
    return [_worker(), _operator(), *_people()]


def _worker() -> dict[str, Any]:
    rules = [
        _rule(GROUP, (LEASED_TASKS,), (*READ, "patch")),
        _rule(GROUP, (f"{LEASED_TASKS}/status",), ("get", "patch")),
        _rule(GROUP, (FAN_OUT_JOBS,), ("get",)),
    ]
    return _role("fencepost-worker", rules)


def _operator() -> dict[str, Any]:
    status = (f"{LEASED_TASKS}/status", f"{FAN_OUT_JOBS}/status")
    rules = [
        _rule(GROUP, (LEASED_TASKS, FAN_OUT_JOBS), (*READ, "create", "update", "patch", "delete")),
        _rule(GROUP, status, ("get", "update", "patch")),
        # Where owner references are protected (OpenShift), whoever sets blockOwnerDeletion needs this.
        _rule(GROUP, (f"{LEASED_TASKS}/finalizers", f"{FAN_OUT_JOBS}/finalizers"), ("update",)),
        _rule("batch", ("jobs",), ("get", "create", "patch", "delete")),
        _rule("", ("configmaps",), ("get", "create", "patch", "delete")),
        _rule("", ("events",), ("create", "patch")),
        _rule("events.k8s.io", ("events",), ("create", "patch")),
        _rule("coordination.k8s.io", ("leases",), ("get", "create", "update", "patch")),
        # Kopf watches these to learn of kinds and namespaces that come and go.
        _rule("apiextensions.k8s.io", ("customresourcedefinitions",), READ),
        _rule("", ("namespaces",), READ),
    ]
    return _role("fencepost-operator", rules)


def _people() -> list[dict[str, Any]]:
    kinds = (LEASED_TASKS, FAN_OUT_JOBS)
    status = (f"{LEASED_TASKS}/status", f"{FAN_OUT_JOBS}/status")
    view = [_rule(GROUP, kinds, READ), _rule(GROUP, status, ("get",))]
    edit = [_rule(GROUP, kinds, (*READ, *CHANGE)), _rule(GROUP, status, ("get",))]
    return [
        _role("fencepost-view", view, aggregate_to=("view", "edit", "admin")),
        _role("fencepost-edit", edit, aggregate_to=("edit", "admin")),
        _role("fencepost-admin", edit, aggregate_to=("admin",)),
    ]
