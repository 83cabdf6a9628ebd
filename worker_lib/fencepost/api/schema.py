"""From pydantic's JSON schema to the structural schema that a CRD needs.

Kubernetes takes no `$ref`, no `anyOf` with null and no `additionalProperties: false`; pydantic writes all
three. This converter inlines, folds and drops them, keeps exactly the keywords that a structural schema may
have, and puts the rules of `rules` where they belong. It raises for anything it does not know, so that no
bound is lost without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_jsonable_python

from fencepost.api.rules import Rule

Schema = dict[str, Any]

KEPT: Final = (
    "type",
    "format",
    "description",
    "default",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
)
CONVERTED: Final = frozenset({"properties", "items", "additionalProperties", "title", "const", "$defs"})
LARGEST_BOUND: Final = 2**63 - 1

OBJECT_FIELDS: Final[dict[str, Schema]] = {
    "apiVersion": {"type": "string", "description": "The version of the schema: fencepost.dev/v1alpha1."},
    "kind": {"type": "string", "description": "The kind of the object."},
    "metadata": {"type": "object"},
}
"""What the API server itself knows about every object; a CRD may not say more of it."""


class SchemaUnsupported(ValueError):  # noqa: N818
    """A model that says something which no structural schema can."""


class _WithAliases(GenerateJsonSchema):
    """Defaults as they travel: by alias, without absent fields."""

    def encode_default(self, dft: Any) -> Any:
        return to_jsonable_python(dft, by_alias=True, exclude_none=True)


def structural_schema(model: type[BaseModel], rules: Mapping[str, tuple[Rule, ...]]) -> Schema:
    """The structural schema of a kind. Rules are found under `Model` and `Model.field`.

    Raises `SchemaUnsupported` for what no structural schema can say.
    """
    raw = model.model_json_schema(schema_generator=_WithAliases, ref_template="{model}")
    converter = _Converter(raw.get("$defs", {}), rules)
    schema = converter.of_model(model.__name__, raw)
    schema["properties"] |= OBJECT_FIELDS
    schema["required"] = ["spec"]
    return schema


class _Converter:
    def __init__(self, models: Mapping[str, Schema], rules: Mapping[str, tuple[Rule, ...]]) -> None:
        self._models = models
        self._rules = rules

    def of_model(self, name: str, raw: Mapping[str, Any]) -> Schema:
        """One model, with its own rules and those of its fields."""
        schema = self._node(raw, name)
        if rules := self._rules.get(name):
            schema["x-kubernetes-validations"] = [rule.as_object() for rule in rules]
        return schema

    def _node(self, raw: Mapping[str, Any], name: str = "") -> Schema:
        if "$ref" in raw:
            return self._of_reference(raw)
        if "anyOf" in raw:
            return self._of_optional(raw)
        if unknown := set(raw) - set(KEPT) - CONVERTED:
            raise SchemaUnsupported(f"{name or raw}: no structural schema has {', '.join(sorted(unknown))}")
        schema: Schema = {key: raw[key] for key in KEPT if key in raw}
        if "const" in raw:
            schema["enum"] = [raw["const"]]
        if schema.get("type") == "integer":
            schema["format"] = "int64"
        if "properties" in raw:
            schema["properties"] = {
                field: self._field(name, field, of) for field, of in raw["properties"].items()
            }
        if "items" in raw:
            schema["items"] = self._node(raw["items"])
        if isinstance(raw.get("additionalProperties"), dict):
            schema["additionalProperties"] = self._node(raw["additionalProperties"])
        return schema

    def _field(self, model: str, field: str, raw: Mapping[str, Any]) -> Schema:
        schema = self._node(raw)
        if rules := self._rules.get(f"{model}.{field}"):
            schema["x-kubernetes-validations"] = [rule.as_object() for rule in rules]
        return schema

    def _of_reference(self, raw: Mapping[str, Any]) -> Schema:
        """The model itself; what the field says of it (description, default) wins."""
        name = raw["$ref"]
        beside = {key: raw[key] for key in raw if key != "$ref"}
        return self.of_model(name, self._models[name]) | self._node(beside)

    def _of_optional(self, raw: Mapping[str, Any]) -> Schema:
        """`X | None`: absent instead of null."""
        present = [choice for choice in raw["anyOf"] if choice.get("type") != "null"]
        if len(present) != 1:
            raise SchemaUnsupported(f"{raw}: a field has one type, or is absent")
        beside = {key: raw[key] for key in raw if key not in ("anyOf", "default")}
        return self._node(present[0]) | self._node(beside)
