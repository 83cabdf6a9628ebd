"""JSON of any depth, as Python can hold it.

The API server stores objects that are nested 10,000 levels deep; Python's parser gives up at about a
thousand, with an error that is no `ValueError`. One such object, which anybody can make who may create a
task, would end every list that it is in. So what is nested deeper than anything of ours is cut out, which
leaves an object that its reader refuses by name while the rest of the list is read.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

DEPTH_MAX: Final = 200
"""Levels that are kept: more than the 64 of a request and the few around it, in a list too."""

_TEXT_OR_BRACKET: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{\]}]')
_OPENING: Final = b"[{"


def parsed(content: bytes) -> Any:
    """The value that `content` is; what is nested deeper than `DEPTH_MAX` is null. Raises `ValueError`."""
    try:
        return json.loads(content)
    except RecursionError:
        return json.loads(cut_to_depth(content))


def cut_to_depth(content: bytes) -> bytes:
    """`content` with null in place of every list and object that is nested deeper than `DEPTH_MAX`."""
    kept: list[bytes] = []
    depth = position = 0
    for match in _TEXT_OR_BRACKET.finditer(content):
        token = match.group()
        if token.startswith(b'"'):
            continue
        if token in _OPENING:
            depth += 1
            if depth == DEPTH_MAX + 1:
                kept += [content[position : match.start()], b"null"]
        else:
            depth -= 1
            if depth == DEPTH_MAX:
                position = match.end()
    return b"".join([*kept, content[position:]])
