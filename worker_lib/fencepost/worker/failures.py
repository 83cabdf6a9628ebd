"""What ends a worker: each with a sentence for the person who reads it and an exit code of its own.

Everything else is dealt with by the loop: a store that is away is tried again, a task that fails is
released, a row that nobody wants is dead-lettered. (71 to 76 are the refusals of the outbox.)
"""

from __future__ import annotations

from typing import ClassVar


class WorkerFailure(Exception):  # noqa: N818 - the base of the endings below
    """The worker cannot go on. The message says what is wrong and what to do."""

    exit_code: ClassVar[int] = 1


class AppUnusable(WorkerFailure):
    """The user's module cannot be imported, or what it names is no worker with a handler."""

    exit_code: ClassVar[int] = 61


class TryAgainLater(WorkerFailure):
    """The store did not answer for as long as we may wait, or rows are left that it would not take yet.

    Nothing is lost: what was done lies in the outbox and is sent at the next start.
    """

    exit_code: ClassVar[int] = 62


class SchemaTooOld(WorkerFailure):
    """The store kept something else than was sent: its CRDs are older than this library (SCHEMA)."""

    exit_code: ClassVar[int] = 63


class NoAccess(WorkerFailure):
    """The account may not do what a worker does: a person has to grant it."""

    exit_code: ClassVar[int] = 64


class GraceOver(WorkerFailure):
    """The handler did not end within its grace. Its lease is not released while it runs: it runs out."""

    exit_code: ClassVar[int] = 65


SECOND_SIGNAL = 66  # the exit code of a worker that was told twice to stop: the outbox has what was done
