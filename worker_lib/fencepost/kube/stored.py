"""Whether the API server kept what was sent: a 2xx answer alone does not say so.

A field that the schema does not know is dropped without a word, and so is what is sent to the wrong one of
main resource and status. The object that comes back with the answer is the one that this very write made,
so it is compared with the patch, field by field. What others added beside it is none of our business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fencepost.kube.client import JSON_PATCH, Json
from fencepost.kube.patches import Patch


class _Absent:
    """What is not there, as a value of its own: null is another thing."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT: Final = _Absent()
_SHOWN_CHARACTERS_MAX: Final = 80


def what_was_not_kept(patch: Patch, kept: Json) -> str | None:
    """The first place where the stored object is not what the patch makes of it, or None.

    The text names the field and both values: `status.receipts[-1].fencingToken: sent 3, kept nothing`.
    """
    for path, sent in _expected(patch):
        difference = first_difference(sent, _found(kept, path), _spelled(path))
        if difference:
            return difference
    return None


def first_difference(sent: Json, kept: Json, where: str) -> str | None:
    """Where `kept` lacks something of `sent` or has another value for it; more than was sent is no matter.

    A null that was sent and dropped is no difference: nothing was said by it.
    """
    if isinstance(sent, Mapping) and isinstance(kept, Mapping):
        pairs = [(f"{where}.{key}", value, kept.get(key, ABSENT)) for key, value in sent.items()]
    elif isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        pairs = [(f"{where}[{i}]", *both) for i, both in enumerate(zip(sent, kept, strict=True))]
    else:
        same = sent == kept or (sent is None and kept is ABSENT)
        return None if same else f"{where}: sent {_shown(sent)}, kept {_shown(kept)}"
    return next(filter(None, (first_difference(s, k, place) for place, s, k in pairs)), None)


def _expected(patch: Patch) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Paths and the values they have after the patch."""
    if patch.content_type == JSON_PATCH:
        effects = [operation for operation in patch.body if operation["op"] != "test"]
        last = {operation["path"]: operation.get("value", ABSENT) for operation in effects}
        for path, value in last.items():
            yield _keys(path), value
        return
    metadata = patch.body["metadata"]
    yield ("metadata", "uid"), metadata["uid"]
    for group in ("annotations", "labels"):
        for key, value in metadata[group].items():
            yield ("metadata", group, key), value


def _keys(path: str) -> tuple[str, ...]:
    return tuple(key.replace("~1", "/").replace("~0", "~") for key in path.split("/")[1:])


def _found(kept: Json, path: tuple[str, ...]) -> Json:
    for key in path:
        if isinstance(kept, list) and kept and key == "-":
            kept = kept[-1]
        elif isinstance(kept, Mapping) and key in kept:
            kept = kept[key]
        else:
            return ABSENT
    return kept


def _spelled(path: tuple[str, ...]) -> str:
    text = ""
    for key in path:
        if key == "-":
            text += "[-1]"
        elif "/" in key or "." in key:
            text += f"[{key}]"
        else:
            text += f".{key}"
    return text.removeprefix(".")


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"
