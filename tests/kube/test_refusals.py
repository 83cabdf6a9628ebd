"""What the answers of the API server mean. The bodies are those of kube-apiserver 1.37.2, cut where long."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.kube.client import Lost, NeverSent, Response
from fencepost.kube.refusals import CHANGED, problem_of_read, refusal_of
from fencepost.ports import Cause, Refused, StoreRefused, StoreUnavailable, Unanswered

OBJECT = {"name": "t", "group": "fencepost.dev", "kind": "leasedtasks"}
POLICY = "ValidatingAdmissionPolicy 'fencepost-fence' with binding 'fencepost-fence' denied request: no"


def status(code: int, message: str, reason: str = "", **details: Any) -> Response:
    body = {"kind": "Status", "code": code, "message": message, "reason": reason, "details": details}
    return Response(status=code, body=body)


CAUSES = [
    (status(409, "the object has been modified", "Conflict", **OBJECT), Cause.PRECONDITION),
    (status(422, "the server rejected our request", "Invalid"), Cause.PRECONDITION),
    (
        status(422, "invalid: metadata.uid", "Invalid", **OBJECT, causes=[{"field": "metadata.uid"}] * 2),
        Cause.PRECONDITION,
    ),
    (status(409, '"t" already exists', "AlreadyExists", **OBJECT), Cause.EXISTS),
    (status(422, "invalid: spec", "Invalid", **OBJECT, causes=[{"field": "spec"}]), Cause.ADMISSION),
    (status(422, POLICY, "Invalid", **OBJECT, causes=[{"message": POLICY}]), Cause.ADMISSION),
    (status(403, POLICY, "Forbidden", **OBJECT, causes=[{"message": POLICY}]), Cause.ADMISSION),
    (status(403, 'admission webhook "w" denied the request: no', "Forbidden"), Cause.ADMISSION),
    (status(400, "error decoding patch", "BadRequest"), Cause.ADMISSION),
    (status(403, 'User "u" cannot patch resource', "Forbidden", **OBJECT), Cause.FORBIDDEN),
    (status(401, "Unauthorized", "Unauthorized"), Cause.FORBIDDEN),
    (Response(status=302, body="log in"), Cause.FORBIDDEN),
    (Response(status=403, body="<html>no</html>"), Cause.FORBIDDEN),
    (status(404, '"t" not found', "NotFound", **OBJECT), Cause.MISSING),
    (Response(status=404, body="404 page not found"), Cause.MISSING),
    (status(413, "Request entity too large: limit is 3145728"), Cause.TOO_LARGE),
    (status(500, "etcdserver: request is too large"), Cause.TOO_LARGE),
    (status(500, "trying to send message larger than max (3000000 vs. 2097152)"), Cause.TOO_LARGE),
    (status(429, "too many requests", "TooManyRequests"), Cause.OVERLOADED),
    (Response(status=429, body="slow down"), Cause.OVERLOADED),
]


@pytest.mark.parametrize(("response", "cause"), CAUSES)
def test_the_cause_of_a_refusal(response: Response, cause: Cause) -> None:
    refusal = refusal_of(response)
    assert isinstance(refusal, Refused)
    assert refusal.cause is cause
    assert refusal.message


@pytest.mark.parametrize(
    "response",
    [
        status(500, "etcdserver: leader changed"),
        status(500, "the operation cannot be completed at this time", "ServerTimeout", retryAfterSeconds=1),
        Response(status=502, body="bad gateway"),
        status(504, "request did not complete within the allotted timeout", "Timeout"),
        Response(status=503, body="upstream connect error or reset", retry_after_seconds=1),
        status(503, "service unavailable"),
    ],
)
def test_what_may_have_been_done_all_the_same_is_no_refusal(response: Response) -> None:
    assert isinstance(refusal_of(response), Unanswered)


def test_the_server_itself_turned_it_away() -> None:
    body = {"kind": "Status", "message": "not fully started"}
    refusal = refusal_of(Response(status=503, body=body, retry_after_seconds=5))
    assert refusal == Refused(cause=Cause.OVERLOADED, message="not fully started", retry_after_seconds=5)


def test_what_never_left_can_be_sent_again_and_what_was_lost_is_uncertain() -> None:
    assert refusal_of(NeverSent(message="m")) == Refused(cause=Cause.OVERLOADED, message="m")
    assert refusal_of(Lost(message="m")) == Unanswered(message="m")


def test_a_failed_comparison_has_a_sentence_and_others_keep_the_servers() -> None:
    failed = refusal_of(status(422, "the server rejected our request due to an error in our request"))
    assert failed.message == CHANGED
    assert refusal_of(status(403, POLICY, causes=[{"message": POLICY}])).message == POLICY


def test_a_message_of_any_size_is_cut() -> None:
    assert len(refusal_of(status(403, "x" * 100_000)).message) <= 1024


def test_an_answer_without_a_message_says_its_number() -> None:
    assert "418" in refusal_of(Response(status=418, body=None)).message


@pytest.mark.parametrize(
    "result",
    [
        Lost(message="m"),
        NeverSent(message="m"),
        status(500, "etcdserver: leader changed"),
        status(410, "the provided continue parameter is too old", "Expired"),
        Response(status=429, body={}, retry_after_seconds=7),
    ],
)
def test_reads_that_may_succeed_later(result: Response | Lost | NeverSent) -> None:
    problem = problem_of_read(result, "the tasks")
    assert isinstance(problem, StoreUnavailable)
    assert str(problem).startswith("cannot read the tasks: ")
    assert problem.retry_after_seconds == (
        7 if isinstance(result, Response) and result.status == 429 else None
    )


def test_reads_that_a_person_has_to_look_at() -> None:
    problem = problem_of_read(status(403, 'User "u" cannot list', "Forbidden"), "the tasks")
    assert isinstance(problem, StoreRefused)
    assert problem.cause is Cause.FORBIDDEN
