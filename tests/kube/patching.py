"""Patches as the API server applies them, on parsed JSON: RFC 6902 and RFC 7386 in its dialect.

`test` with null passes where the key is absent, but only if its parent is there; `remove` fails on what is
absent; a patch of the main resource leaves the status alone and one of the status everything else. The tests
against the real API server show that this is its dialect.
"""

from __future__ import annotations

import copy
from typing import Any

from fencepost.kube.client import JSON_PATCH
from fencepost.kube.patches import Part, Patch

Json = Any


class NotApplicable(Exception):  # noqa: N818 - no failure of ours
    """The API server would answer 422 or 409; nothing is changed."""


def patched(stored: Json, patch: Patch) -> Json:
    """The object after the patch, at its next version. Raises `NotApplicable`."""
    changed = copy.deepcopy(stored)
    if patch.content_type == JSON_PATCH:
        for operation in patch.body:
            _carry_out(changed, operation)
    else:
        _refuse_another_version(stored, patch.body["metadata"])
        changed = _merged(changed, patch.body)
    kept = (
        {"status": changed["status"]}
        if patch.part is Part.STATUS
        else {**changed, "status": stored["status"]}
    )
    result = {**copy.deepcopy(stored), **kept}
    result["metadata"]["resourceVersion"] = str(int(stored["metadata"]["resourceVersion"]) + 1)
    return result


def _refuse_another_version(stored: Json, metadata: Json) -> None:
    for name in ("uid", "resourceVersion"):
        if stored["metadata"][name] != metadata[name]:
            raise NotApplicable(name)


def _merged(target: Json, patch: Json) -> Json:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


def _carry_out(whole: Json, operation: Json) -> None:
    *parents, last = [key.replace("~1", "/").replace("~0", "~") for key in operation["path"].split("/")[1:]]
    parent = whole
    for key in parents:
        if not isinstance(parent, dict) or key not in parent:
            raise NotApplicable(f"no parent of {operation['path']}")
        parent = parent[key]
    match operation["op"]:
        case "test" if parent.get(last) != operation["value"]:
            raise NotApplicable(f"test of {operation['path']}")
        case "remove" if last not in parent:
            raise NotApplicable(f"nothing to remove at {operation['path']}")
        case "remove":
            del parent[last]
        case "add" if isinstance(parent, list):
            assert last == "-"
            parent.append(operation["value"])
        case "add":
            parent[last] = operation["value"]
