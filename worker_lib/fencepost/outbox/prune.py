"""Removing what is old, without a gap in what can be checked.

Acknowledged rows go by the age of their receipt, dead letters only on request, pending and parked rows never.
Of the chain only a beginning goes, up to the first step that a row here still needs; the hash before the
first kept step stays as the base of a replay. The newest step always stays: it is the position that claims
carry.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from fencepost.outbox.statements import query
from fencepost.outbox.writer import Writer


def prune_older(writer: Writer, *, before: str, dead: bool) -> int:
    """Remove what is older than `before` in this transaction; how many rows went."""
    cutoff = {"before": before}
    removed = writer.execute(query("prune_acknowledged"), cutoff).rowcount
    if dead:
        removed += writer.execute(query("prune_dead"), cutoff).rowcount
    writer.execute(query("prune_tasks"), cutoff)
    if removed:
        writer.execute(query("note_prune"), cutoff)
    _prune_steps(writer, before)
    return removed


def _prune_steps(writer: Writer, before: str) -> None:
    newest = writer.execute(query("newest_prunable_step"), {"before": before}).fetchone()
    if newest is None:
        return
    base = {"sequence": newest["sequence"], "hash": newest["hash"]}
    writer.execute(query("move_base"), base)
    writer.execute(query("prune_steps"), base)


def time_before(now: str, days: float) -> str:
    """The time that many days before `now`, as text that compares with what the clock gives."""
    return (datetime.fromisoformat(now) - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
