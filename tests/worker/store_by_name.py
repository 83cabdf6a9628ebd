"""The store that a test's worker program is told to use: an embedded file, or an API server.

`FILE.db` is an embedded store; `FILE.json` has {server, ca_file, token, namespace} of an API server.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from fencepost.ports import TaskStore


def store_by_name(name: str, *, ahead: float = 0.0) -> TaskStore:
    """Open it. `ahead`: how many seconds more than really passed have passed for an embedded store."""
    if name.endswith(".json"):
        return _api_server(json.loads(Path(name).read_text()))
    from fencepost.local.store import LocalStore
    from fencepost.local.store_clock import boottime_seconds

    return LocalStore(
        Path(name), clock=lambda: time.time() + ahead, boottime=lambda: boottime_seconds() + ahead
    )


def _api_server(where: dict[str, str]) -> TaskStore:
    from fencepost.kube.connection import explicit
    from fencepost.kube.store import KubeStore

    ca_file = Path(where["ca_file"]) if where.get("ca_file") else None
    return KubeStore.of(
        explicit(where["server"], ca_file=ca_file, token=where["token"], namespace=where["namespace"])
    )
