"""How a handler ends other than by returning: the exceptions that users raise.

A returned value is the outcome Ok. Any exception that is not one of these is a *retryable error*, which is
no outcome: the lease is released with the reason, and the task is claimed again after its backoff.
"""

from __future__ import annotations


class Rejected(Exception):  # noqa: N818 - the field's word for the outcome
    """The work is refused for good: the outcome `Rejected`, never tried again.

    `value` is kept as the result, like a returned value: text as it is, anything else as canonical JSON.
    """

    def __init__(self, value: object = "") -> None:
        super().__init__(value)
        self.value = value


class OutcomeUnknown(Exception):  # noqa: N818 - the field's word for the outcome
    """Nobody knows whether the work took effect: the outcome `Unknown`, which settles nothing.

    The task's `unknownPolicy` says what happens next: wait for a report from outside, or be claimed again.
    """


class LeaseOver(Exception):  # noqa: N818 - what happened, not a failure of ours
    """`lease.check()`: the lease is lost, or the worker was told to stop. Let it pass through."""


def value_for_unreadable_request(problem: str) -> str:
    """The value of `Rejected` for a task that nobody can work on, because its request cannot be read."""
    return f"the request cannot be read: {problem}"
