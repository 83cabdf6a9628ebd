"""What the queue holds: the kind, namespace and name of an object to look at."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from fencepost.protocol.task import ObjectKey


class Kind(StrEnum):
    """The two kinds that are reconciled; the value is the resource's name in URLs and metrics."""

    TASK = "leasedtasks"
    JOB = "fanoutjobs"


class Key(NamedTuple):
    """Which object to look at. A tuple, because there are thousands and each is hashed on every event."""

    kind: Kind
    namespace: str
    name: str

    @property
    def object_key(self) -> ObjectKey:
        return ObjectKey(namespace=self.namespace, name=self.name)

    def __str__(self) -> str:
        return f"{self.kind.value} {self.namespace}/{self.name}"


def task_key(key: ObjectKey) -> Key:
    return Key(Kind.TASK, key.namespace, key.name)


def job_key(key: ObjectKey) -> Key:
    return Key(Kind.JOB, key.namespace, key.name)
