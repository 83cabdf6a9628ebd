"""Log lines as JSON, one object a line, and a guard against saying the same thing again and again.

Every line has `ts` (UTC), `level` and `msg`; lines about an object have `namespace`, `name` and `uid`, and
`token` where a lease is meant. A `trace` is there only for a defect of ours: Kopf logs one for each
connection that breaks, and its sentence says as much.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final

FIELDS: Final = ("namespace", "name", "uid", "token", "reason")
REPEAT_SECONDS: Final = 30.0
REMEMBERED_MAX: Final = 4096

logger = logging.getLogger("fencepost_operator")


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
        }
        for field in FIELDS:
            value = record.__dict__.get(field) if field != "name" else record.__dict__.get("object_name")
            if value not in (None, ""):
                line[field] = value
        ours = record.name.startswith("fencepost")
        if not ours:
            line["logger"] = record.name
        if record.exc_info and ours:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up(level: str) -> None:
    """Log to standard error as JSON lines; of Kopf and other packages only what is an error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(_FirstOfMany(clock=monotonic))
    logging.basicConfig(handlers=[handler], level=logging.ERROR, force=True)
    logging.getLogger("kopf").setLevel(logging.ERROR)
    logging.getLogger("fencepost").setLevel(logging.WARNING)
    logger.setLevel(level.upper())


class _FirstOfMany(logging.Filter):
    """Kopf reports each of its endless attempts as an error; one in a while says it."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        super().__init__()
        self._repeats = Repeats(clock=clock)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == "asyncio" and "kopf" in record.getMessage():
            return False  # a callback of a watch that was cut while it was closed
        return not record.name.startswith("kopf") or self._repeats.is_news(record.name, record.lineno)


def about(namespace: str, name: str, *, uid: str = "", token: int | None = None, reason: str = "") -> Any:
    """The `extra` of a line about an object."""
    return {"namespace": namespace, "object_name": name, "uid": uid, "token": token, "reason": reason}


class Repeats:
    """Whether a thing was said of late: what goes on for hours is said twice a minute at most."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: dict[tuple[object, ...], float] = {}

    def is_news(self, *what: object) -> bool:
        """True if it was not said in the last half minute; it counts as said then."""
        now = self._clock()
        if now - self._said.get(what, float("-inf")) < REPEAT_SECONDS:
            return False
        self._said.pop(what, None)
        self._said[what] = now
        while len(self._said) > REMEMBERED_MAX:
            del self._said[next(iter(self._said))]
        return True
