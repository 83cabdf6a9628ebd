"""What Prometheus is told. Names and labels are an interface: a change is a note in the changelog."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One registry of its own for each operator, so that two in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events = Counter(
            "fencepost_watch_events", "Events that the watch brought", ["resource"], registry=self.registry
        )
        self.writes = Counter(
            "fencepost_writes",
            "Writes by what they were and how they ended",
            ["what", "end"],
            registry=self.registry,
        )
        self.reconciles = Counter(
            "fencepost_reconciles",
            "Looks at an object by how they ended",
            ["resource", "end"],
            registry=self.registry,
        )
        self.join_seconds = Histogram(
            "fencepost_join_seconds",
            "From the sight of the last branch that settled to the committed snapshot",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self.registry,
        )
        self.queue_ready = self._gauge("fencepost_queue_ready", "Objects that wait to be looked at")
        self.queue_delayed = self._gauge("fencepost_queue_delayed", "Objects with a date to be looked at")
        self.tasks = self._gauge("fencepost_cached_tasks", "LeasedTasks in the cache")
        self.jobs = self._gauge("fencepost_cached_jobs", "FanOutJobs in the cache")
        self.watch_age = Gauge(
            "fencepost_watch_age_seconds",
            "Seconds since a watch last made progress",
            ["resource"],
            registry=self.registry,
        )

    def text(self) -> bytes:
        """All of it in the text format of Prometheus."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(name, what, registry=self.registry)
