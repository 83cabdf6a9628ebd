"""What the models of both kinds share: the base, bounded texts and numbers, words of a CRD's schema."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from fencepost.protocol import limits, task

PRESERVE: Final[dict[str, Any]] = {"x-kubernetes-preserve-unknown-fields": True}
ATOMIC_LIST: Final[dict[str, Any]] = {"x-kubernetes-list-type": "atomic"}
ATOMIC_MAP: Final[dict[str, Any]] = {"x-kubernetes-map-type": "atomic"}
BY_TYPE: Final[dict[str, Any]] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
DATE_TIME: Final[dict[str, Any]] = {"format": "date-time"}
NEVER: Final = "1970-01-01T00:00:00Z"
QUEUE_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", max_length=64)]
Seconds = Annotated[int, Field(ge=1, le=limits.DEADLINE_SECONDS_MAX)]
Ttl = Annotated[int, Field(ge=0, le=limits.DEADLINE_SECONDS_MAX)]
FreeForm = Annotated[dict[str, Any], Field(json_schema_extra=PRESERVE)]
Short = Annotated[str, Field(max_length=64)]
Time = Annotated[str, Field(json_schema_extra=DATE_TIME)]
# Strictness is for what people write ("30s" is no number); the words of an enum are texts all the same.
ResultOutcome = Annotated[task.Outcome, Field(strict=False)]


class Wire(BaseModel):
    """What all models share: camelCase names, no unknown fields, no conversions."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", strict=True, frozen=True
    )


class Condition(Wire):
    """A condition as on any Kubernetes object."""

    type: Short = Field(min_length=1, description="What is told, for example Succeeded.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    reason: str = Field(
        max_length=limits.REASON_CHARACTERS_MAX, description="One word, for programs, that says why."
    )
    message: str = Field(max_length=limits.MESSAGE_BYTES_MAX, description="A sentence, for people.")
    last_transition_time: Time = Field(description="When status changed last.")
    observed_generation: int | None = Field(
        default=None, description="metadata.generation of the object that it was judged on."
    )


NOT_SETTLED = Condition(
    type="Succeeded",
    status="Unknown",
    reason="NotSettled",
    message="not settled yet",
    last_transition_time=NEVER,
)
CONDITIONS_MAX: Final = 8
