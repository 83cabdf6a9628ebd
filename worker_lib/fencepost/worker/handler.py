"""The user's function: what it takes and gives, and how it is called.

The request is turned into the type of the handler's first parameter and the result checked against its
return annotation, by pydantic; plain dictionaries and text need no pydantic and do not load it. A `def` runs
in a thread of its own, an `async def` on the worker's loop.
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

_PLAIN: typing.Final = (dict, Mapping, Any, object, None, type(None))


class RequestUnfit(ValueError):  # noqa: N818 - a statement about the request
    """The task's request does not fit the handler's type; the message names the fields."""


class ResultUnfit(ValueError):  # noqa: N818 - a statement about the result
    """What the handler returned does not fit its return annotation; the message names the fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A function that executes the tasks of a queue. `lease_parameter` is None if it does not want one."""

    function: Callable[..., Any]
    queue: str
    is_async: bool
    request_type: Any
    result_type: Any
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
        if _is_plain(self.request_type):
            return json.loads(request)
        adapter = _adapter(self.request_type)
        from pydantic import ValidationError

        try:
            return adapter.validate_json(request)
        except ValidationError as error:
            raise RequestUnfit(
                f"the request does not fit {_name(self.request_type)}: {_told(error)}"
            ) from None

    def _plain_result(self, result: object) -> object:
        if isinstance(result, str) and self.result_type in (str, Any):
            return result
        if _is_plain(self.result_type) and isinstance(result, dict | list | int | float | str | None):
            return result
        from pydantic import ValidationError
        from pydantic_core import PydanticSerializationError

        wanted = type(result) if _is_plain(self.result_type) else self.result_type
        adapter = _adapter(wanted)
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
    for wanted in (hints.get(first.name, Any) if first else Any, hints.get("return", Any)):
        _refuse_unknown_type(function, wanted)
    return Handler(
        function=function,
        queue=queue,
        is_async=inspect.iscoroutinefunction(function),
        request_type=hints.get(first.name, Any) if first else Any,
        result_type=hints.get("return", Any),
        takes_request=first is not None,
        lease_parameter=lease_parameter,
    )


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise AppUnusable(
            f"the annotations of the handler {_name(function)} do not resolve: {error}"
        ) from None


def _refuse_unknown_type(function: Callable[..., Any], wanted: Any) -> None:
    """A type that no value can be made of is told when the module is loaded, not with the first task."""
    if wanted is str or _is_plain(wanted):
        return
    try:
        _adapter(wanted)
    except ResultUnfit as unfit:
        raise AppUnusable(f"the handler {_name(function)}: {unfit}") from None


def _wants_lease(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> bool:
    from fencepost.worker.lease import Lease

    return parameter.name == "lease" or hints.get(parameter.name) is Lease


def _is_required(parameter: inspect.Parameter) -> bool:
    named = parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return named and parameter.default is inspect.Parameter.empty


def _is_plain(wanted: Any) -> bool:
    return wanted in _PLAIN or typing.get_origin(wanted) is dict


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(wanted: Any) -> TypeAdapter[Any]:
    """The adapter of a type, made once: building one costs more than a task."""
    if wanted not in _ADAPTERS:
        from pydantic import PydanticUserError, TypeAdapter

        try:
            _ADAPTERS[wanted] = TypeAdapter(wanted)
        except PydanticUserError as error:
            raise ResultUnfit(f"{_name(wanted)} is no type that pydantic knows: {error.message}") from None
    return _ADAPTERS[wanted]


def _name(thing: Any) -> str:
    return getattr(thing, "__qualname__", None) or str(thing)


def _told(error: Any) -> str:
    """The errors of pydantic as one sentence: each field and what it should be."""
    if not hasattr(error, "errors"):
        return str(error)
    found = error.errors(include_url=False, include_input=False)
    told = [f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in found[:5]]
    more = len(found) - len(told)
    return "; ".join(told) + (f" and {more} more" if more > 0 else "")
