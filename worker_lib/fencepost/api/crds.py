"""The two CustomResourceDefinitions, made from the models and the rules."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from fencepost.api import names, v1alpha1
from fencepost.api.rules import RULES
from fencepost.api.schema import structural_schema
from fencepost.protocol.limits import GROUP, VERSION

Column = dict[str, Any]

# What `claimable` and a person filter by, on the server.
TASK_SELECTABLE: Final = (
    ".spec.queue",
    ".spec.suspend",
    ".spec.priority",
    ".spec.external",
    ".status.state",
    ".status.settled",
)
JOB_SELECTABLE: Final = (".spec.suspend", ".status.state")


def _column(name: str, path: str, *, type: str = "string", wide: bool = False, description: str) -> Column:
    column = {"name": name, "type": type, "jsonPath": path, "description": description}
    return column | {"priority": 1} if wide else column


def _metadata(kind: str, key: str) -> str:
    """The path of an annotation or label; a dot inside a key is escaped."""
    return f".metadata.{kind}.{key.replace('.', chr(92) + '.')}"


_AGE: Final = _column("Age", ".metadata.creationTimestamp", type="date", description="Since its creation.")

TASK_COLUMNS: Final = (
    _column("Queue", ".spec.queue", description="The queue it is claimed from."),
    _column("State", ".status.state", description="Open, Unknown, Succeeded, Failed or Cancelled."),
    _column("Hold", _metadata("labels", names.HOLD), description="Why it cannot be claimed now."),
    _column("Token", _metadata("annotations", names.FENCING_TOKEN), description="How often it was claimed."),
    _AGE,
    _column("Priority", ".spec.priority", type="integer", wide=True, description="0 to 9."),
    _column("Holder", _metadata("annotations", names.HOLDER), wide=True, description="Who holds it."),
    _column(
        "Failures", _metadata("annotations", names.FAILURES), wide=True, description="Leases without result."
    ),
    _column(
        "Progress", _metadata("annotations", names.PROGRESS), wide=True, description="The worker's word."
    ),
    _column("Receipts", ".status.count", type="integer", wide=True, description="Accepted submits."),
)

JOB_COLUMNS: Final = (
    _column("State", ".status.state", description="Running, Succeeded or Failed."),
    _column("Tasks", ".status.created", type="integer", description="Branches that have had their task."),
    _column(
        "Message",
        '.status.conditions[?(@.type=="Succeeded")].message',
        description="How many branches have settled, and which are waited for.",
    ),
    _AGE,
    _column("Digest", ".status.snapshot.digest", wide=True, description="Of the snapshot."),
    _column("Then", ".status.continuation.name", wide=True, description="The continuation."),
)


def leased_tasks() -> dict[str, Any]:
    """The CustomResourceDefinition of LeasedTask."""
    return _definition(
        v1alpha1.LeasedTask,
        plural=names.LEASED_TASKS,
        short="lt",
        selectable=TASK_SELECTABLE,
        columns=TASK_COLUMNS,
    )


def fan_out_jobs() -> dict[str, Any]:
    """The CustomResourceDefinition of FanOutJob."""
    return _definition(
        v1alpha1.FanOutJob,
        plural=names.FAN_OUT_JOBS,
        short="foj",
        selectable=JOB_SELECTABLE,
        columns=JOB_COLUMNS,
    )


def _definition(
    model: type[BaseModel],
    *,
    plural: str,
    short: str,
    selectable: tuple[str, ...],
    columns: tuple[Column, ...],
) -> dict[str, Any]:
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "selectableFields": [{"jsonPath": path} for path in selectable],
        "additionalPrinterColumns": list(columns),
        "schema": {"openAPIV3Schema": structural_schema(model, RULES)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "plural": plural,
                "singular": model.__name__.lower(),
                "kind": model.__name__,
                "listKind": f"{model.__name__}List",
                "shortNames": [short],
                "categories": ["fencepost"],
            },
            "versions": [version],
        },
    }
