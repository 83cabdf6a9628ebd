"""Kopf, made to read events and lists that have an object of any depth in them.

The API server stores objects that are nested 10,000 levels deep, and whoever may create a task may create
one. Python's parser gives up at about a thousand levels, with an error that ends Kopf's whole operator; it is
started again, reads the same event, and ends again: one object would blind us to all others. So Kopf has to
parse as our own client does (`fencepost.kube.parsing`), which cuts out what nobody could read anyway.

Lists are parsed by the response of the session that Kopf is given, which is ours to choose. The lines of a
watch are parsed by the module `json` that Kopf's client has imported, and there is no other way in than to
put another one in its place, in that one module.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp.typedefs import JSONDecoder
from kopf._cogs.clients import api

from fencepost.kube.parsing import parsed


def loads(text: str) -> Any:
    """As `json.loads`, of any depth."""
    return parsed(text.encode())


class ResponseOfAnyDepth(aiohttp.ClientResponse):
    """What Kopf's lists are read from."""

    async def json(
        self,
        *,
        encoding: str | None = None,
        loads: JSONDecoder = loads,
        content_type: str | None = "application/json",
    ) -> Any:
        return await super().json(encoding=encoding, loads=loads, content_type=content_type)


def parse_watches_of_any_depth() -> None:
    """From now on, for the whole process; doing it again changes nothing."""
    vars(api)["json"] = SimpleNamespace(loads=loads)
