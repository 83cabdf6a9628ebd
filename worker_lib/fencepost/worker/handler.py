"""The user's function: what it takes and gives, and how it is called.

The request is turned into the type of the handler's first parameter and the result checked against its
return annotation, by pydantic, with adapters that are built once, when the function is decorated. Text and
dictionaries whose values may be anything need no pydantic and do not load it; `dict[str, int]` does. A `def`
runs in a thread of its own, an `async def` on the worker's loop.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fencepost.protocol.payload import value_text
from fencepost.worker.failures import AppUnusable

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from fencepost.worker.lease import Lease

_ANYTHING: typing.Final = (Any, object)
_NONE: typing.Final = type(None)
_MAPPINGS: typing.Final = (
    dict,
    Mapping,
    typing.Dict,  # noqa: UP006 - what an older annotation says
    dict[str, Any],
    dict[str, object],
    Mapping[str, Any],
    Mapping[str, object],
)


class RequestUnfit(ValueError):  # noqa: N818 - a statement about the request
    """The task's request does not fit the handler's type; the message names the fields."""


class ResultUnfit(ValueError):  # noqa: N818 - a statement about the result
    """What the handler returned does not fit its return annotation; the message names the fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A function that executes the tasks of a queue. `lease_parameter` is None if it does not want one.

    The adapters are None for the types that need no pydantic.
    """

    function: Callable[..., Any]
    queue: str
    is_async: bool
    request_type: Any
    result_type: Any
    request_adapter: TypeAdapter[Any] | None
    result_adapter: TypeAdapter[Any] | None
    takes_request: bool
    lease_parameter: str | None

    def arguments(self, request: str, lease: Lease) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the function with. Raises `RequestUnfit`."""
        positional = (self._typed_request(request),) if self.takes_request else ()
        named = {self.lease_parameter: lease} if self.lease_parameter else {}
        return positional, named

    def text_of(self, result: object) -> str:
        """The value to keep for `result`. Raises `ResultUnfit` or `payload.PayloadRefused`."""
        return value_text(self._plain_result(result))

    def _typed_request(self, request: str) -> Any:
        if self.request_type is str:
            return request
        if self.request_adapter is None:
            return json.loads(request)
        from pydantic import ValidationError

        try:
            return self.request_adapter.validate_json(request)
        except ValidationError as error:
            raise RequestUnfit(
                f"the request does not fit {_name(self.request_type)}: {_told(error)}"
            ) from None

    def _plain_result(self, result: object) -> object:
        if self.result_type is str and isinstance(result, str):
            return result
        if self.result_adapter is not None:
            return _dumped(self.result_adapter, self.result_type, result)
        plain = dict(result) if isinstance(result, Mapping) else result
        if not isinstance(plain, dict | list | int | float | str | None):
            plain = _dumped(_adapter(type(result)), type(result), result)
        is_none, is_mapping = self.result_type is _NONE, self.result_type in _MAPPINGS
        if (is_none and plain is not None) or (is_mapping and not isinstance(plain, dict)):
            wanted, got = "None" if is_none else _name(self.result_type), type(result).__name__
            raise ResultUnfit(f"the result does not fit {wanted}: the handler returned {got}")
        return plain


def _dumped(adapter: TypeAdapter[Any], wanted: Any, result: object) -> object:
    """The result as JSON's own types. Raises `ResultUnfit` if it is not of the wanted type."""
    from pydantic import ValidationError
    from pydantic_core import PydanticSerializationError

    try:
        return adapter.dump_python(adapter.validate_python(result), mode="json", by_alias=True)
    except (ValidationError, PydanticSerializationError) as error:
        raise ResultUnfit(f"the result does not fit {_name(wanted)}: {_told(error)}") from None


def plain_value(value: object) -> object:
    """`value` as JSON's own types: pydantic models, dataclasses and the like are dumped.

    Raises `ResultUnfit` for what cannot be.
    """
    if isinstance(value, dict | list | int | float | str | None):
        return value
    from pydantic_core import PydanticSerializationError

    try:
        return _adapter(type(value)).dump_python(value, mode="json", by_alias=True)
    except PydanticSerializationError as error:
        raise ResultUnfit(f"{_name(type(value))} cannot be kept as JSON: {error}") from None


def handler_of(function: Callable[..., Any], queue: str) -> Handler:
    """Look at the function's signature; raises `AppUnusable` with what is wrong with it."""
    hints = _hints(function)
    parameters = list(inspect.signature(function).parameters.values())
    lease_parameter = next((p.name for p in parameters if _wants_lease(p, hints)), None)
    others = [p for p in parameters if p.name != lease_parameter and _is_required(p)]
    if len(others) > 1 or any(p.kind is inspect.Parameter.KEYWORD_ONLY for p in others):
        raise AppUnusable(
            f"the handler {_name(function)} takes {', '.join(p.name for p in others)}: "
            "a handler takes the request and, if it wants, a parameter `lease`"
        )
    first = next((p for p in parameters if p.name != lease_parameter), None)
    request_type, result_type = hints.get(first.name, Any) if first else Any, hints.get("return", Any)
    return Handler(
        function=function,
        queue=queue,
        is_async=inspect.iscoroutinefunction(function),
        request_type=request_type,
        result_type=result_type,
        request_adapter=_adapter_of_signature(function, request_type),
        result_adapter=_adapter_of_signature(function, result_type),
        takes_request=first is not None,
        lease_parameter=lease_parameter,
    )


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise AppUnusable(
            f"the annotations of the handler {_name(function)} do not resolve: {error}"
        ) from None


def _adapter_of_signature(function: Callable[..., Any], wanted: Any) -> TypeAdapter[Any] | None:
    """The adapter of a type in the signature, or None if it needs none.

    Raises `AppUnusable` for a type that no value can be made of: told when the module is loaded, not with
    the first task.
    """
    if wanted in (str, _NONE) or wanted in _ANYTHING or wanted in _MAPPINGS:
        return None
    try:
        return _built(wanted)
    except ResultUnfit as unfit:
        raise AppUnusable(f"the handler {_name(function)}: {unfit}") from None


def _wants_lease(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> bool:
    from fencepost.worker.lease import Lease

    return parameter.name == "lease" or hints.get(parameter.name) is Lease


def _is_required(parameter: inspect.Parameter) -> bool:
    named = parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return named and parameter.default is inspect.Parameter.empty


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def _adapter(wanted: type) -> TypeAdapter[Any]:
    """The adapter of a class, made once: building one costs more than a task. Raises `ResultUnfit`."""
    if wanted not in _ADAPTERS:
        _ADAPTERS[wanted] = _built(wanted)
    return _ADAPTERS[wanted]


def _built(wanted: Any) -> TypeAdapter[Any]:
    from pydantic import PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(wanted)
    except PydanticUserError as error:
        raise ResultUnfit(f"{_name(wanted)} is no type that pydantic knows: {error.message}") from None


def _name(thing: Any) -> str:
    if typing.get_origin(thing) is not None:
        return str(thing).replace("typing.", "")
    return getattr(thing, "__qualname__", None) or str(thing)


def _told(error: Any) -> str:
    """The errors of pydantic as one sentence: each field and what it should be."""
    if not hasattr(error, "errors"):
        return str(error)
    found = error.errors(include_url=False, include_input=False)
    told = [f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in found[:5]]
    more = len(found) - len(told)
    return "; ".join(told) + (f" and {more} more" if more > 0 else "")
