"""Where the objects are that the operator reads and writes: paths of the API server."""

from __future__ import annotations

from typing import Final

from fencepost.api import names
from fencepost.protocol.job import ContinuationKind

_GROUP: Final = f"/apis/{names.API_VERSION}"

COLLECTIONS: Final[dict[ContinuationKind, tuple[str, str]]] = {
    ContinuationKind.LEASED_TASK: (_GROUP, names.LEASED_TASKS),
    ContinuationKind.FAN_OUT_JOB: (_GROUP, names.FAN_OUT_JOBS),
    ContinuationKind.JOB: ("/apis/batch/v1", "jobs"),
}


def collection(resource: str, namespace: str | None) -> str:
    """One of our two kinds, in one namespace or (None) in all."""
    return f"{_GROUP}/{resource}" if namespace is None else f"{_GROUP}/namespaces/{namespace}/{resource}"


def task(namespace: str, name: str) -> str:
    return f"{collection(names.LEASED_TASKS, namespace)}/{name}"


def job(namespace: str, name: str) -> str:
    return f"{collection(names.FAN_OUT_JOBS, namespace)}/{name}"


def continuations(kind: ContinuationKind, namespace: str) -> str:
    group, resource = COLLECTIONS[kind]
    return f"{group}/namespaces/{namespace}/{resource}"


def config_maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"
