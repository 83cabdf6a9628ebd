"""The operator, killed at its n-th write: before the write is sent, or after it was carried out.

`python -m tests.handlers.crashing_operator` with CRASH_AT="3 before" or "3 after" in the environment. The
product has no hook for this: its client is another one, handed in where everything is put together.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
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
        counts = not query and "selfsubject" not in path
        if counts:
            self._before()
        result = await super().create(path, body, query=query)
        if counts:
            self._after()
        return result

    async def patch(self, path: str, body: Any, **options: Any) -> Result:
        self._before()
        result = await super().patch(path, body, **options)
        self._after()
        return result

    async def delete(self, path: str, **options: Any) -> Result:
        self._before()
        result = await super().delete(path, **options)
        self._after()
        return result

    def _before(self) -> None:
        type(self)._writes += 1
        if (self._writes, "before") == (self._at, self._when):
            os._exit(CRASHED)

    def _after(self) -> None:
        if (self._writes, "after") == (self._at, self._when):
            os._exit(CRASHED)


if __name__ == "__main__":
    number, CrashingClient._when = os.environ[WHERE].split()
    CrashingClient._at = int(number)
    sys.exit(main(client_type=CrashingClient))
