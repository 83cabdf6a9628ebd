"""The converter raises for what a structural schema cannot say, instead of losing it."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from fencepost.api.rules import Rule
from fencepost.api.schema import SchemaUnsupported, structural_schema


class Spec(BaseModel):
    """What is asked for."""

    name: str | None = Field(default=None, max_length=5, description="A name.")
    size: int = Field(default=3, ge=1, description="A size.")


class Thing(BaseModel):
    """A thing."""

    spec: Spec = Field(description="The spec of this thing.")


def test_references_are_written_out_and_null_is_absence() -> None:
    schema = structural_schema(Thing, {})
    assert schema["required"] == ["spec"]
    assert schema["properties"]["spec"] == {
        "type": "object",
        "description": "The spec of this thing.",
        "properties": {
            "name": {"type": "string", "maxLength": 5, "description": "A name."},
            "size": {
                "type": "integer",
                "format": "int64",
                "minimum": 1,
                "default": 3,
                "description": "A size.",
            },
        },
    }


def test_rules_stand_at_their_model_or_field() -> None:
    rule = Rule(rule="self.size > 0", message="larger")
    rules = {"Spec": (rule,), "Spec.name": (rule,)}
    spec = structural_schema(Thing, rules)["properties"]["spec"]
    assert spec["x-kubernetes-validations"] == [{"rule": "self.size > 0", "message": "larger"}]
    assert "x-kubernetes-validations" in spec["properties"]["name"]
    assert "x-kubernetes-validations" not in spec["properties"]["size"]


def test_an_unknown_keyword_is_refused() -> None:
    class Multiple(BaseModel):
        spec: Annotated[int, Field(multiple_of=2)]

    with pytest.raises(SchemaUnsupported, match="multipleOf"):
        structural_schema(Multiple, {})


def test_a_field_of_two_types_is_refused() -> None:
    class Either(BaseModel):
        spec: int | str

    with pytest.raises(SchemaUnsupported, match="one type"):
        structural_schema(Either, {})
