"""Consuming a joined job once: the effect and the mark "consumed" are one local transaction.

Effects outside that transaction are the caller's: they need an idempotency key of their own.
"""

from __future__ import annotations

from enum import StrEnum

from fencepost.protocol.job import Job


class ConsumeVerdict(StrEnum):
    """Whether the effect is to be carried out now."""

    CONSUME = "CONSUME"
    ALREADY_CONSUMED = "ALREADY_CONSUMED"
    NOT_JOINED = "NOT_JOINED"
    UNKNOWN_JOB = "UNKNOWN_JOB"


def judge_consume(job: Job | None, *, consumed_digest: str | None) -> ConsumeVerdict:
    """`consumed_digest` is the digest of the snapshot that was consumed before, or None."""
    if job is None:
        return ConsumeVerdict.UNKNOWN_JOB
    if job.status.snapshot is None:
        return ConsumeVerdict.NOT_JOINED
    return ConsumeVerdict.CONSUME if consumed_digest is None else ConsumeVerdict.ALREADY_CONSUMED
