"""What is wrong with a person's input, as one sentence for each place: path, what was found, what is allowed.

What is allowed is read from the same schema that the API server gets, so that the two cannot disagree.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fencepost.api.schema import Schema, structural_schema

FOUND_CHARACTERS_MAX: Final = 60


def sentences(model: type[BaseModel], value: Mapping[str, Any], at: str) -> Iterator[str]:
    """`path: sentence` for everything in `value` that the model refuses; `at` leads every path."""
    try:
        model.model_validate(value, by_name=False, by_alias=True)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_context=False):
            yield f"{at}{_sentence(_schema(model), detail)}"


@cache
def _schema(model: type[BaseModel]) -> Schema:
    schema = structural_schema(model, {})
    fields = model.model_fields
    for name, field in (("apiVersion", fields["api_version"]), ("kind", fields["kind"])):
        schema["properties"][name] = {"enum": get_args(field.annotation)}
    return schema


def _sentence(schema: Schema, detail: ErrorDetails) -> str:
    path = [part for part in detail["loc"] if part != "[key]"]
    if detail["type"] == "extra_forbidden":
        fields = _node(schema, path[:-1]).get("properties", {})
        parent = _path(path[:-1])
        return f"{parent}{'.' if parent else ''}{missing_or_misspelt(str(path[-1]), (), fields)}"
    node, found = _node(schema, path), detail["input"]
    if detail["type"] == "missing":
        return f"{_path(path)}: missing; expected {_allowed(node)}"
    quote = ": quote it" if node.get("type") == "string" and isinstance(found, bool | int | float) else ""
    return f"{_path(path)}: expected {_allowed(node)}, got {_found(found)}{quote}"


def missing_or_misspelt(field: str, present: Iterable[str], known: Iterable[str] | str) -> str:
    """About a field that nobody knows (`known` are the lawful ones), or that is not there."""
    if isinstance(known, str):
        near = difflib.get_close_matches(field, list(present), n=1)
        hint = f"did you mean {field} where {near[0]} stands?" if near else f"expected {known}"
        return f"{field}: missing; {hint}"
    near = difflib.get_close_matches(field, list(known), n=1)
    hint = f"did you mean {near[0]}?" if near else f"the fields here are {', '.join(known)}"
    return f"{field}: there is no such field; {hint}"


def _path(parts: Iterable[object]) -> str:
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _node(schema: Schema, path: Iterable[object]) -> Schema:
    """The schema at a path; empty where there is none, as inside a request."""
    for part in path:
        inside = schema.get("items") if isinstance(part, int) else _field(schema, str(part))
        schema = inside if isinstance(inside, dict) else {}
    return schema


def _field(schema: Schema, name: str) -> object:
    return schema.get("properties", {}).get(name) or schema.get("additionalProperties")


def _allowed(node: Schema) -> str:
    if "enum" in node:
        return " or ".join(node["enum"])
    match node.get("type"):
        case "integer":
            return f"a whole number{_range(node, 'minimum', 'maximum')}"
        case "boolean":
            return "true or false"
        case "string":
            pattern = f" that match {node['pattern']}" if "pattern" in node else ""
            return f"text{_range(node, 'minLength', 'maxLength', ' characters')}{pattern}"
        case "array":
            return f"a list{_range(node, 'minItems', 'maxItems', ' entries')}"
        case _:
            return "an object"


def _range(node: Schema, lowest: str, highest: str, unit: str = "") -> str:
    """For example ` from 1 to 3600`, or ` of 1 to 63 characters`."""
    low, high = node.get(lowest), node.get(highest)
    word = "of" if unit else "from"
    if low is not None and high is not None:
        return f" {word} {low} to {high}{unit}"
    if high is not None:
        return f" of at most {high}{unit}"
    return f" of at least {low}{unit}" if low is not None else ""


def _found(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, str) and len(value) > FOUND_CHARACTERS_MAX:
        return f"{len(value)} characters"
    try:
        return json.dumps(value, ensure_ascii=False)[:FOUND_CHARACTERS_MAX]
    except (TypeError, ValueError):
        return f"a {type(value).__name__}"
