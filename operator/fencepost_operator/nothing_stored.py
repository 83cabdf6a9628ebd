"""Kopf's two storages, with nothing in them.

Kopf remembers on each object what it last handled, and for that copies the whole object several times on
every event, handlers for changes or not. We have none, nothing may be written on objects, and the copies
were two thirds of the time that an event took.
"""

from __future__ import annotations

from typing import Any

import kopf


class NoDiffBase(kopf.DiffBaseStorage):
    """No last state: nothing is compared with it."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        """Nothing is put on objects."""


class NoProgress(kopf.ProgressStorage):
    """No progress of handlers: an event is passed on at once or not at all."""

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        """Nothing is put on objects."""

    def purge(self, **_: Any) -> None:
        """There is nothing to be taken off objects."""

    def touch(self, **_: Any) -> None:
        """Nothing is put on objects."""

    def clear(self, *, essence: Any) -> Any:
        return essence
