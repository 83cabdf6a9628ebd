"""The operator, killed at its n-th write: before the write is sent, or after it was carried out.

`python -m tests.handlers.crashing_operator` with CRASH_AT="3 before" or "3 after" in the environment. The
product has no hook for this: its client is another one, handed in where everything is put together.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Mapping
from typing import Any

from fencepost.kube.client import ApiClient, Result
from fencepost_operator.app import main

CRASHED = 137
WHERE = "CRASH_AT"


class CrashingClient(ApiClient):
    """Counts writes, but for those that are no writes: reviews and dry runs."""

    _writes = 0
    _at, _when = 0, ""

    async def create(self, path: str, body: Any, *, query: Mapping[str, str] | None = None) -> Result:
        if query or "selfsubject" in path:
            return await super().create(path, body, query=query)
        return await self._counted(super().create(path, body))

    async def patch(self, path: str, body: Any, **options: Any) -> Result:
        return await self._counted(super().patch(path, body, **options))

    async def delete(self, path: str, **options: Any) -> Result:
        return await self._counted(super().delete(path, **options))

    async def _counted(self, request: Awaitable[Result]) -> Result:
        type(self)._writes += 1
        number = self._writes
        if (number, self._when) == (self._at, "before"):
            os._exit(CRASHED)
        result = await request
        if (number, self._when) == (self._at, "after"):
            os._exit(CRASHED)
        return result


if __name__ == "__main__":
    number, CrashingClient._when = os.environ[WHERE].split()
    CrashingClient._at = int(number)
    sys.exit(main(client_type=CrashingClient))
