"""Every exit code of the commands, in one place: a script can tell what happened without reading text.

Codes 61 to 66 end a worker, 71 to 76 are the refusals of the outbox (`fencepost.outbox.refusals`). A verdict
that leaves nothing to do is 0.
"""

from __future__ import annotations

from typing import Final

from fencepost.protocol.submission import Verdict
from fencepost.worker import failures

OK: Final = 0  # done; also: `--once` and a `drain` with nothing to do
FAILED: Final = 1  # a job that ended Failed; an audit that found something; an error with no code of its own
USAGE: Final = 2  # wrong input: a flag, a file, a request
NOTHING: Final = 3  # `claim`: there is nothing to claim
LEASE_OVER: Final = 4  # `heartbeat`, `release`: the lease is not ours any more
CONFLICT: Final = 10  # from here to 16: the verdicts of `submit` and `enqueue`
STALE_TOKEN: Final = 11
EXPIRED_LEASE: Final = 12
ALREADY_TERMINAL: Final = 13
TERMINAL_CONFLICT: Final = 14
UNKNOWN: Final = 15
UNACCEPTABLE: Final = 16  # too large, or refused by admission
STANDSTILL: Final = 20  # `run`: what is left waits for a person or a report
NO_WORKERS: Final = 21  # `run`: the workers cannot be used or keep dying
STORE_AWAY: Final = 22  # `run`: the store could not be used for minutes
INTERRUPTED: Final = 130

APP_UNUSABLE: Final = failures.AppUnusable.exit_code
TRY_AGAIN_LATER: Final = failures.TryAgainLater.exit_code
SCHEMA_TOO_OLD: Final = failures.SchemaTooOld.exit_code
NO_ACCESS: Final = failures.NoAccess.exit_code
GRACE_OVER: Final = failures.GraceOver.exit_code
SECOND_SIGNAL: Final = failures.SECOND_SIGNAL

OF_VERDICT: Final[dict[Verdict, int]] = {
    Verdict.ACCEPTED: OK,
    Verdict.RECOVERED: OK,
    Verdict.DUPLICATE: OK,
    Verdict.REJECTED_DUPLICATE: OK,
    Verdict.CONFLICT: CONFLICT,
    Verdict.REJECTED_STALE_TOKEN: STALE_TOKEN,
    Verdict.REJECTED_EXPIRED_LEASE: EXPIRED_LEASE,
    Verdict.ALREADY_TERMINAL: ALREADY_TERMINAL,
    Verdict.TERMINAL_CONFLICT: TERMINAL_CONFLICT,
    Verdict.UNKNOWN_TASK: UNKNOWN,
    Verdict.UNKNOWN_JOB: UNKNOWN,
    Verdict.UNKNOWN_BRANCH: UNKNOWN,
    Verdict.RETRY_LATER: TRY_AGAIN_LATER,
}
