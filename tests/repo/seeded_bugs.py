"""Break one rule of the core at a time and see that its tests notice: `python -m tests.repo.seeded_bugs`.

A test suite says that the code is right; this says that the suite would tell if it were not. Each bug is one
that somebody could make: a comparison that is left out, a limit that is off by one, two steps swapped. The
core is copied, the copy is broken, and `tests/protocol` runs against the copy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SOURCES = REPOSITORY / "worker_lib"
CORE = Path("fencepost/protocol")
TESTS = "tests/protocol"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """`right` stands once in the file and becomes `wrong`."""

    rule: str
    file: str
    right: str
    wrong: str


BUGS = (
    Bug(
        rule="FENCE-01: a claim raises the token",
        file="fencing.py",
        right="return task_token + 1",
        wrong="return task_token + 0",
    ),
    Bug(
        rule="FENCE-02: the holder is compared, not only the token",
        file="fencing.py",
        right='task.token == token and task.holder == holder and holder != ""',
        wrong="task.token == token",
    ),
    Bug(
        rule="a token is canonical text to its last byte",
        file="fencing.py",
        right="_TOKEN.fullmatch(text)",
        wrong="_TOKEN.match(text)",
    ),
    Bug(
        rule="a claim is made on the version that was judged",
        file="mutation.py",
        right="task.version != claim.version or",
        wrong="",
    ),
    Bug(
        rule="a revoke fails after a heartbeat",
        file="mutation.py",
        right="isinstance(end, Revoke) and task.renewals != end.renewals",
        wrong="False",
    ),
    Bug(
        rule="the end of a lease tests the state it was decided on",
        file="mutation.py",
        right="if task.settled or task.state is not end.state:",
        wrong="if task.settled:",
    ),
    Bug(
        rule="a receipt goes on top of the head it was made for",
        file="mutation.py",
        right="or task.state is not write.state or task.head != write.head:",
        wrong="or task.state is not write.state:",
    ),
    Bug(
        rule="the operator settles only what nobody holds",
        file="mutation.py",
        right="elif task.held or task.token != write.token:",
        wrong="elif task.token != write.token:",
    ),
    Bug(
        rule="a submit carries the account of its claim",
        file="mutation.py",
        right="holder, account = write.holder, task.account",
        wrong="holder = write.holder",
    ),
    Bug(
        rule="a requeue that was followed by a claim stands",
        file="mutation.py",
        right="task.token > mutation.token or (task.token == mutation.token and task.hold is None)",
        wrong="task.hold is None",
    ),
    Bug(
        rule="a reported Unknown is put on hold",
        file="mutation.py",
        right="hold=Hold.UNKNOWN if unheld_unknown else task.hold,",
        wrong="hold=task.hold,",
    ),
    Bug(
        rule="from Unknown the hold is always Unknown",
        file="lease.py",
        right="(State.UNKNOWN, LeaseEnd.EXPIRED): _UNKNOWN_COUNTS,",
        wrong="(State.UNKNOWN, LeaseEnd.EXPIRED): _BACKOFF,",
    ),
    Bug(
        rule="a release at a worker's start counts as a failure",
        file="lease.py",
        right="(State.OPEN, LeaseEnd.START): _BACKOFF,",
        wrong="(State.OPEN, LeaseEnd.START): _FREE,",
    ),
    Bug(
        rule="maxFailures counts retries",
        file="lease.py",
        right="task.failures <= task.spec.retry_policy.max_failures",
        wrong="task.failures < task.spec.retry_policy.max_failures",
    ),
    Bug(
        rule="an Unknown under Hold is not run again",
        file="lease.py",
        right="if task.state is State.UNKNOWN and task.spec.unknown_policy is UnknownPolicy.HOLD:",
        wrong="if False:",
    ),
    Bug(
        rule="IDEM-01: a stored key is answered before the fence",
        file="submission.py",
        right="        _replay(task, submission)\n        or _stale(task, submission)\n",
        wrong="        _stale(task, submission)\n        or _replay(task, submission)\n",
    ),
    Bug(
        rule="the fence comes before the settled task",
        file="submission.py",
        right="        or _stale(task, submission)\n        or _terminal(task, submission)\n",
        wrong="        or _terminal(task, submission)\n        or _stale(task, submission)\n",
    ),
    Bug(
        rule="the settled task comes before the accepted payload",
        file="submission.py",
        right="_terminal(task, submission)\n        or _duplicate_payload(task, submission, elsewhere)\n",
        wrong="_duplicate_payload(task, submission, elsewhere)\n        or _terminal(task, submission)\n",
    ),
    Bug(
        rule="IDEM-02: another body under a key is a conflict",
        file="submission.py",
        right="    return (receipt.kind, receipt.outcome, receipt.payload_sha256) == (",
        wrong="    return True or (receipt.kind, receipt.outcome, receipt.payload_sha256) == (",
    ),
    Bug(
        rule="a lease is expired only until the next claim",
        file="submission.py",
        right="        and task.token == last.token\n",
        wrong="",
    ),
    Bug(
        rule="a lease is named whole",
        file="submission.py",
        right="    if (submission.token is None) is not (submission.holder is None):\n",
        wrong="    if False:\n",
    ),
    Bug(
        rule="four receipts are kept for settling",
        file="submission.py",
        right="    if task.count + 1 > room:\n",
        wrong="    if task.count > room:\n",
    ),
    Bug(
        rule="a row leaves room for the result in the limit of rows",
        file="submission.py",
        right="if rows > limits.ROWS_BYTES_MAX:",
        wrong="if rows >= limits.ROWS_BYTES_MAX:",
    ),
    Bug(
        rule="I1: a duplicate of a duplicate names the first",
        file="dedup.py",
        right="            and not receipt.duplicate_of\n",
        wrong="",
    ),
    Bug(
        rule="the token is in an Unknown's key",
        file="receipt.py",
        right='attempt = str(token) if outcome is Outcome.UNKNOWN else ""',
        wrong='attempt = ""',
    ),
    Bug(
        rule="every receipt names the one before",
        file="receipt.py",
        right="receipt.sequence != position or receipt.previous != previous",
        wrong="receipt.sequence != position",
    ),
    Bug(
        rule="parts of a hash are framed",
        file="payload.py",
        right='        digest.update(f"{len(encoded)}:".encode("ascii"))\n',
        wrong="",
    ),
    Bug(
        rule="sizes are of the escaped text",
        file="limits.py",
        right="5 * five_more",
        wrong="0 * five_more",
    ),
    Bug(
        rule="a lease is over after more than its duration",
        file="upkeep.py",
        right="return unchanged_seconds > task.spec.lease_duration_seconds",
        wrong="return unchanged_seconds >= task.spec.lease_duration_seconds",
    ),
    Bug(
        rule="a deadline leaves an Unknown alone",
        file="upkeep.py",
        right="if task.spec.active_deadline_seconds is None or task.state is State.UNKNOWN:",
        wrong="if task.spec.active_deadline_seconds is None:",
    ),
    Bug(
        rule="an Unknown past its deadline is not run again",
        file="upkeep.py",
        right=" and (deadline is None or ages.task < deadline)",
        wrong="",
    ),
    Bug(
        rule="a wait is capped",
        file="backoff.py",
        right="min(policy.backoff_max_seconds, policy.backoff_base_seconds * (1 << doublings))",
        wrong="policy.backoff_base_seconds * (1 << doublings)",
    ),
    Bug(
        rule="only the stored mark says that a task was deleted",
        file="join.py",
        right="if child.standing is Standing.ABSENT and below_mark:",
        wrong="if child.standing is Standing.ABSENT:",
    ),
    Bug(
        rule="a task that was not seen is not deleted",
        file="join.py",
        right="if child.standing is Standing.ABSENT and below_mark:",
        wrong="if child.standing is not Standing.OURS and below_mark:",
    ),
    Bug(
        rule="a recorded branch's task is never made again",
        file="join.py",
        right="if branch.name not in records and children[branch.name].standing in _NOT_THERE",
        wrong="if children[branch.name].standing in _NOT_THERE",
    ),
    Bug(
        rule="the number of branches comes from the spec",
        file="join.py",
        right="if len(records) == len(job.spec.branches):",
        wrong="if len(records) == len([c for c in children.values() if c.task]):",
    ),
    Bug(
        rule="parallelism counts what is below the mark and not seen",
        file="join.py",
        right=" or (below_mark and child.standing is Standing.UNSEEN)",
        wrong="",
    ),
    Bug(
        rule="the digest knows nothing of the run",
        file="join.py",
        right="records[name].payload_sha256] for name in sorted(records)]",
        wrong="records[name].receipt_sha256] for name in sorted(records)]",
    ),
    Bug(
        rule="one rejection fails the job",
        file="join.py",
        right="every_ok = all(",
        wrong="every_ok = any(",
    ),
    Bug(
        rule="inline values together are bounded",
        file="join.py",
        right='            room -= limits.stored_size(record.value or "")\n',
        wrong="",
    ),
    Bug(
        rule="two jobs share no child",
        file="fanout.py",
        right="framed_sha256(CHILD_DOMAIN, job.uid, str(generation), branch_name)",
        wrong="framed_sha256(CHILD_DOMAIN, job.key.name, str(generation), branch_name)",
    ),
    Bug(
        rule="a child has no TTL of its own",
        file="fanout.py",
        right=", ttl_seconds_after_finished=None)",
        wrong=")",
    ),
    Bug(
        rule="only the recorded continuation is started",
        file="continuation.py",
        right="return Record.THIS if record.uid == seen.uid else Record.OTHER",
        wrong="return Record.THIS",
    ),
    Bug(
        rule="what runs before its UID is recorded is not ours",
        file="continuation.py",
        right="(Record.NONE, Found.RUNNING): Step.CONFLICT",
        wrong="(Record.NONE, Found.RUNNING): Step.RECORD",
    ),
    Bug(
        rule="a late duplicate of a started continuation is deleted",
        file="continuation.py",
        right="late = seen.found is Found.SUSPENDED and seen.uid != record.uid",
        wrong="late = False",
    ),
    Bug(
        rule="an event's first answer stands",
        file="report.py",
        right="    if known is not None:\n        return _replayed(report, known)\n",
        wrong="",
    ),
    Bug(
        rule="a report does not break into a lease",
        file="report.py",
        right="    if judgement.append and task.held:\n        return _later(report)\n",
        wrong="",
    ),
    Bug(
        rule="a replay acknowledges only with this outbox's receipt",
        file="drain.py",
        right="return RowStatus.ACKNOWLEDGED if ours else RowStatus.DEAD",
        wrong="return RowStatus.ACKNOWLEDGED",
    ),
    Bug(
        rule="only a stale row dies with its task",
        file="drain.py",
        right="if status is RowStatus.PARKED and (task is None or task.settled):",
        wrong="if task is None or task.settled:",
    ),
    Bug(
        rule="an acknowledged Unknown is no result",
        file="drain.py",
        right="return outcome is not Outcome.UNKNOWN or status not in",
        wrong="return True or status not in",
    ),
    Bug(
        rule="a dead Unknown is no result either",
        file="drain.py",
        right="not in (RowStatus.ACKNOWLEDGED, RowStatus.DEAD)",
        wrong="not in (RowStatus.ACKNOWLEDGED,)",
    ),
    Bug(
        rule="I4: a replay compares every step",
        file="steps.py",
        right="        if step != expected:\n",
        wrong="        if step.hash != expected.hash:\n",
    ),
    Bug(
        rule="a joined job is consumed once",
        file="consume.py",
        right="return ConsumeVerdict.CONSUME if consumed_digest is None else ConsumeVerdict.ALREADY_CONSUMED",
        wrong="return ConsumeVerdict.CONSUME",
    ),
    Bug(
        rule="MANIFEST-01: a listed path that is gone is told",
        file="manifest.py",
        right="        if found is None:\n",
        wrong="        if False:\n",
    ),
)


def broken_text(bug: Bug, sources: Path = SOURCES) -> str:
    """The text of the bug's file with the bug; raises `ValueError` where the code has moved on."""
    text = (sources / CORE / bug.file).read_text(encoding="utf-8")
    if text.count(bug.right) != 1:
        raise ValueError(
            f"{bug.file} has {bug.right!r} {text.count(bug.right)} times: bring the bug up to date"
        )
    return text.replace(bug.right, bug.wrong)


def is_noticed(bug: Bug) -> bool:
    """Whether the tests of the core fail on a copy of the sources that has the bug."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "worker_lib"
        shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / CORE / bug.file).write_text(broken_text(bug), encoding="utf-8")
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-p", "no:fencepost", TESTS],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if run.returncode not in (0, 1):
        raise RuntimeError(f"the tests did not run with the bug in place:\n{run.stdout[-2000:]}")
    return run.returncode == 1


def main(word: str = "") -> int:
    """Print a line for each bug whose rule or file has the word; 1 if one went unnoticed."""
    unnoticed = 0
    chosen = [bug for bug in BUGS if word in bug.rule or word in bug.file]
    for bug in chosen:
        noticed = is_noticed(bug)
        unnoticed += not noticed
        print(f"{'noticed  ' if noticed else 'UNNOTICED'} {bug.file:16} {bug.rule}", flush=True)
    print(f"{len(chosen) - unnoticed} of {len(chosen)} seeded bugs noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
