"""Errors as the reader gets them: one sentence that says what was wrong and what to do, and an exit code."""

from __future__ import annotations

from fencepost.cli import exit_codes
from fencepost.outbox import OutboxFailed, OutboxRefused
from fencepost.ports import Cause, StoreRefused, StoreUnavailable
from fencepost.protocol.payload import PayloadRefused
from fencepost.protocol.submission import SubmissionTooLarge
from fencepost.worker.enqueue import EnqueueRefused
from fencepost.worker.failures import WorkerFailure


def sentence_and_code(error: Exception) -> tuple[str, int]:
    """What to say and with which code to end."""
    match error:
        case WorkerFailure():
            return str(error), error.exit_code
        case OutboxRefused():
            return str(error), error.exit_code
        case OutboxFailed():
            return str(error), exit_codes.FAILED
        case StoreUnavailable():
            return f"the store does not answer: {error}", exit_codes.TRY_AGAIN_LATER
        case StoreRefused() | EnqueueRefused():
            return str(error), _of_cause(error.cause)
        case PayloadRefused() | SubmissionTooLarge():
            return str(error), exit_codes.USAGE
        case OSError() if error.filename:
            return f"{error.filename}: {error.strerror}", exit_codes.USAGE
    if type(error).__name__ in ("NoCluster", "ManifestUnreadable"):  # of packages that may not be loaded
        return str(error), exit_codes.NO_ACCESS if type(error).__name__ == "NoCluster" else exit_codes.USAGE
    what = f"{type(error).__name__}: {error}"
    return f"unexpected: {what} (FENCEPOST_DEBUG=1 shows where; please report it)", exit_codes.FAILED


def _of_cause(cause: Cause) -> int:
    match cause:
        case Cause.SCHEMA:
            return exit_codes.SCHEMA_TOO_OLD
        case Cause.FORBIDDEN:
            return exit_codes.NO_ACCESS
        case Cause.OVERLOADED:
            return exit_codes.TRY_AGAIN_LATER
        case Cause.ADMISSION | Cause.TOO_LARGE:
            return exit_codes.USAGE
    return exit_codes.FAILED
