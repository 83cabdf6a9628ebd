"""The shelf in a SQLite file: one instance for one transaction on one connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any, Final

from fencepost.local import codec, task_row
from fencepost.local.jobs import all_made, is_finished
from fencepost.local.shelf import Kept
from fencepost.local.store_clock import Mark, Reading, goes_on
from fencepost.protocol.job import Job, JobSpec, JobStatus
from fencepost.protocol.report import ReportAnswer
from fencepost.protocol.task import Candidate, ObjectKey, Receipt, State, Task

SCHEMA_VERSION: Final = 2
# What makes a file of an older version one of the next; `schema.sql` is a new file of the newest.
MIGRATIONS: Final = {
    1: (
        "ALTER TABLE clock ADD COLUMN wall REAL",
        "ALTER TABLE clock ADD COLUMN boottime REAL NOT NULL DEFAULT 0",
        "ALTER TABLE clock ADD COLUMN boot TEXT NOT NULL DEFAULT ''",
    )
}
MARK_SECONDS: Final = 1.0  # between two marks of the time: one costs a page of its commit


def schema() -> Iterator[str]:
    """The statements of `schema.sql`, one by one: a script would be committed by its first one."""
    text = resources.files("fencepost.local").joinpath("schema.sql").read_text(encoding="utf-8")
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


@lru_cache(maxsize=8)
def _parsed_job_spec(text: str) -> JobSpec:
    return codec.job_spec_of(text)


@lru_cache(maxsize=8)
def _parsed_job_status(text: str) -> JobStatus:
    return codec.job_status_of(text)


@dataclass(slots=True, kw_only=True)
class Tables:
    """See `shelf.Shelf`. `changed` says whether there is anything to commit."""

    connection: sqlite3.Connection
    changed: bool = False
    _mark: Mark | None = None
    _rows: dict[ObjectKey, tuple[int, Kept]] = field(default_factory=dict)

    @property
    def latest(self) -> float:
        return self.mark.time

    @property
    def mark(self) -> Mark:
        """The time that was stored last, and what the machine's clocks said then."""
        if self._mark is None:
            latest, wall, boottime, boot = self._one("SELECT latest, wall, boottime, boot FROM clock")
            reading = None if wall is None else Reading(wall=wall, boottime=boottime, boot=boot)
            self._mark = Mark(time=latest, reading=reading)
        return self._mark

    def note_time(self, now: float, reading: Reading) -> None:
        """Store the time: once a second, with what is written anyway, and at once after a restart.

        Until there is a mark of this start of the machine, the wall clock would be believed again.
        """
        is_old = self.changed and now - self.latest >= MARK_SECONDS
        if is_old or not goes_on(self.mark, reading):
            self._write(
                "UPDATE clock SET latest = ?, wall = ?, boottime = ?, boot = ?",
                *(now, reading.wall, reading.boottime, reading.boot),
            )
            self._mark = Mark(time=now, reading=reading)

    def kept(self, key: ObjectKey) -> Kept | None:
        if key in self._rows:
            return self._rows[key][1]
        found = self._tasks("namespace = ? AND name = ?", key.namespace, key.name)
        return found[0] if found else None

    def keep(self, kept: Kept) -> None:
        known = self._rows.get(kept.task.key)
        if known is None and self.kept(kept.task.key) is not None:
            known = self._rows[kept.task.key]
        if known is None:
            row = self._insert(kept)
        else:
            row, before = known
            self._write(task_row.UPDATE, *task_row.moving_values(kept), row)
            if before.task.spec != kept.task.spec:
                self._write("UPDATE specs SET spec = ? WHERE task = ?", codec.text_of(kept.task.spec), row)
            self._append(row, kept.task.receipts[before.task.count :])
        self._rows[kept.task.key] = (row, kept)

    def drop(self, key: ObjectKey) -> None:
        if self.kept(key) is None:
            return
        row, _ = self._rows.pop(key)
        for statement in (
            "DELETE FROM receipts WHERE task = ?",
            "DELETE FROM specs WHERE task = ?",
            "DELETE FROM tasks WHERE id = ?",
        ):
            self._write(statement, row)

    def candidates(self, namespace: str, queue: str, limit: int) -> Sequence[Candidate]:
        rows = self._all(
            "SELECT name, uid, version, token, failures, owner_kind, owner_name, owner_uid, branch FROM tasks"
            " WHERE claimable = 1 AND namespace = ? AND queue = ? ORDER BY priority DESC, id LIMIT ?",
            namespace,
            queue,
            limit,
        )
        return [
            Candidate(
                key=ObjectKey(namespace=namespace, name=name),
                uid=uid,
                version=str(version),
                token=token,
                failures=failures,
                owner=task_row.owner_of(*owner),
                branch=branch,
            )
            for name, uid, version, token, failures, *owner, branch in rows
        ]

    def due(self, now: float, limit: int) -> Sequence[ObjectKey]:
        rows = self._all(
            "SELECT due, namespace, name FROM tasks WHERE due IS NOT NULL AND outbox = '' AND due <= ?"
            " UNION ALL"
            " SELECT due, namespace, name FROM tasks WHERE settled = 0 AND outbox <> '' AND due <= ?"
            " ORDER BY due LIMIT ?",
            now,
            now,
            limit,
        )
        return [ObjectKey(namespace=namespace, name=name) for _, namespace, name in rows]

    def tasks(self, namespace: str, queue: str | None) -> Sequence[Task]:
        if queue is None:
            found = self._tasks("namespace = ? ORDER BY name", namespace)
        else:
            found = self._tasks("namespace = ? AND queue = ? ORDER BY name", namespace, queue)
        return [kept.task for kept in found]

    def unsettled_of_outbox(self, namespace: str, outbox: str) -> Sequence[Task]:
        where = "settled = 0 AND outbox = ? AND outbox <> '' AND namespace = ? ORDER BY name"
        return [kept.task for kept in self._tasks(where, outbox, namespace)]

    def claimed_by_outbox(self, namespace: str, outbox: str) -> Sequence[Task]:
        where = "namespace = ? AND (outbox = ? OR instr(last_lease, ' ' || ? || '/') > 0) ORDER BY name"
        return [kept.task for kept in self._tasks(where, namespace, outbox, outbox)]

    def children(self, owner_uid: str) -> Sequence[Task]:
        return [kept.task for kept in self._tasks("owner_uid = ? ORDER BY name", owner_uid)]

    def may_join(self, key: ObjectKey, uid: str) -> bool:
        return bool(
            self._all(
                "SELECT 1 FROM jobs WHERE namespace = ? AND name = ? AND uid = ? AND joined = 0 AND"
                " (made = 0 OR NOT EXISTS (SELECT 1 FROM tasks WHERE owner_uid = jobs.uid AND settled = 0))",
                key.namespace,
                key.name,
                uid,
            )
        )

    def counted(self, owner_uid: str) -> Mapping[State, int]:
        rows = self._all("SELECT state, count(*) FROM tasks WHERE owner_uid = ? GROUP BY state", owner_uid)
        return {State(state): number for state, number in rows}

    def can_go_on(self) -> bool:
        return any(
            self._all(f"SELECT 1 FROM tasks WHERE {where} LIMIT 1")
            for where in ("claimable = 1", "settled = 0 AND outbox <> ''", "due IS NOT NULL AND outbox = ''")
        )

    def job(self, key: ObjectKey) -> Job | None:
        found = self._jobs("namespace = ? AND name = ?", key.namespace, key.name)
        return found[0] if found else None

    def keep_job(self, job: Job) -> None:
        owner = job.owner
        self._write(
            "INSERT INTO jobs (namespace, name, uid, generation, owner_kind, owner_name, owner_uid,"
            " created_at, version, made, joined, finished, spec, status)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (namespace, name) DO UPDATE SET version = excluded.version, made = excluded.made,"
            " joined = excluded.joined, finished = excluded.finished, spec = excluded.spec,"
            " status = excluded.status",
            job.key.namespace,
            job.key.name,
            job.uid,
            job.generation,
            owner.kind if owner else None,
            owner.name if owner else None,
            owner.uid if owner else None,
            job.created_at,
            int(job.version),
            int(all_made(job)),
            int(job.joined),
            int(is_finished(job)),
            codec.text_of(job.spec),
            codec.text_of(job.status),
        )

    def drop_job(self, key: ObjectKey) -> None:
        self._write("DELETE FROM jobs WHERE namespace = ? AND name = ?", key.namespace, key.name)

    def jobs(self, namespace: str) -> Sequence[Job]:
        return self._jobs("namespace = ? ORDER BY name", namespace)

    def unfinished_jobs(self) -> Sequence[ObjectKey]:
        rows = self._all("SELECT namespace, name FROM jobs WHERE finished = 0 ORDER BY id")
        return [ObjectKey(namespace=namespace, name=name) for namespace, name in rows]

    def answer(self, event_id: str) -> ReportAnswer | None:
        found = self._all("SELECT answer FROM reports WHERE event = ?", event_id)
        return codec.answer_of(found[0][0]) if found else None

    def keep_answer(self, answer: ReportAnswer) -> None:
        self._write("INSERT INTO reports VALUES (?, ?)", answer.report.event_id, codec.text_of(answer))

    def accepted_payload(self, scope: str, payload_sha256: str) -> str:
        statement = "SELECT receipt_sha256 FROM payloads WHERE scope = ? AND payload_sha256 = ?"
        found = self._all(statement, scope, payload_sha256)
        return str(found[0][0]) if found else ""

    def keep_payload(self, scope: str, payload_sha256: str, receipt_sha256: str) -> None:
        self._write("INSERT INTO payloads VALUES (?, ?, ?)", scope, payload_sha256, receipt_sha256)

    def consumed(self, job_uid: str) -> str | None:
        found = self._all("SELECT digest FROM consumed WHERE job = ?", job_uid)
        return str(found[0][0]) if found else None

    def keep_consumed(self, job_uid: str, digest: str) -> None:
        self._write("INSERT INTO consumed VALUES (?, ?)", job_uid, digest)

    def _insert(self, kept: Kept) -> int:
        cursor = self.connection.execute(
            task_row.INSERT, (*task_row.fixed_values(kept), *task_row.moving_values(kept))
        )
        self.changed = True
        row = int(cursor.lastrowid or 0)
        self._write("INSERT INTO specs VALUES (?, ?)", row, codec.text_of(kept.task.spec))
        self._append(row, kept.task.receipts)
        return row

    def _append(self, row: int, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            self._write(
                "INSERT INTO receipts VALUES (?, ?, ?)", row, receipt.sequence, codec.text_of(receipt)
            )

    def _tasks(self, where: str, *values: object) -> list[Kept]:
        return [self._kept(row) for row in self._all(f"{task_row.SELECT} WHERE {where}", *values)]

    def _kept(self, row: Sequence[Any]) -> Kept:
        number, spec, *columns = row
        named = dict(zip(task_row.FIXED + task_row.MOVING, columns, strict=True))
        receipts = self._receipts(number) if named["receipts"] else ()
        kept = Kept(
            task=task_row.task_of(named, spec, receipts),
            created=named["created"],
            since=named["since"],
            due=named["due"],
        )
        self._rows[kept.task.key] = (number, kept)
        return kept

    def _receipts(self, row: int) -> tuple[Receipt, ...]:
        rows = self._all("SELECT receipt FROM receipts WHERE task = ? ORDER BY sequence", row)
        return tuple(codec.receipt_of(text) for (text,) in rows)

    def _jobs(self, where: str, *values: object) -> list[Job]:
        rows = self._all(
            "SELECT namespace, name, uid, version, spec, status, generation, created_at,"
            f" owner_kind, owner_name, owner_uid FROM jobs WHERE {where}",
            *values,
        )
        return [
            Job(
                key=ObjectKey(namespace=namespace, name=name),
                uid=uid,
                version=str(version),
                spec=_parsed_job_spec(spec),
                status=_parsed_job_status(status),
                generation=generation,
                created_at=created_at,
                owner=task_row.owner_of(*owner),
            )
            for namespace, name, uid, version, spec, status, generation, created_at, *owner in rows
        ]

    def _all(self, statement: str, *values: object) -> list[Any]:
        return self.connection.execute(statement, values).fetchall()

    def _one(self, statement: str, *values: object) -> Any:
        return self.connection.execute(statement, values).fetchone()

    def _write(self, statement: str, *values: object) -> None:
        self.connection.execute(statement, values)
        self.changed = True
