"""The API server's own account of what was asked of it, for tests that count writes.

A client's counters tell what the client believes; the audit log tells what arrived, retries included.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.kube_api import Json, KubeApi

MARKER_SECONDS_MAX = 10.0
WRITING_VERBS = frozenset({"create", "update", "patch", "delete", "deletecollection"})

_MARKER_PATH = "/apis/fencepost.dev/v1alpha1/namespaces/default/leasedtasks/audit-marker"
_MARKER_AGENT = "fencepost-audit-marker/"


def audit_logs_in(folder: Path) -> list[Path]:
    """The logs of a control plane that keeps its files in that folder, one for each API server."""
    return sorted(folder.glob("audit-*.jsonl"))


def audit_events(logs: Sequence[Path], api: KubeApi) -> list[Json]:
    """All events written so far, oldest first within each log.

    An event is written after its answer has gone out, so the log lags the client by a moment. A request of
    our own is therefore sent first and its event waited for: what was answered before it is then in the log
    as well. Raises `TimeoutError` where that event does not come within ten seconds.
    """
    marker = _MARKER_AGENT + uuid.uuid4().hex
    api.request("GET", _MARKER_PATH, headers={"User-Agent": marker})
    until = time.monotonic() + MARKER_SECONDS_MAX
    while True:
        events = [event for log in logs for event in _events_of(log)]
        if any(event.get("userAgent") == marker for event in events):
            return [event for event in events if not event.get("userAgent", "").startswith(_MARKER_AGENT)]
        if time.monotonic() > until:
            raise TimeoutError(
                f"no event of our own request in {', '.join(map(str, logs)) or 'no audit log'}"
            )
        time.sleep(0.02)


def accepted_writes(events: Sequence[Json], *, namespace: str, resource: str = "leasedtasks") -> list[Json]:
    """Of these events, the 2xx writes to that resource or its status in that namespace; dry runs left out."""
    return [
        event
        for event in events
        if event["verb"] in WRITING_VERBS
        and event["objectRef"]["resource"] == resource
        and event["objectRef"].get("namespace") == namespace
        and 200 <= event["responseStatus"]["code"] < 300
        and "dryRun=" not in event["requestURI"]
    ]


def _events_of(log: Path) -> list[Json]:
    content = log.read_bytes()
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
