"""What an answer that is no success means for the caller: HTTP status and Status body to `ports.Cause`.

The API server says different things by the same number. A failed `test` of a JSON patch is 422 without
details, a rule of the schema 422 with fields, a policy 422 or 403 with a cause that names it, missing rights
403 without causes. Whatever may have been carried out all the same is `Unanswered`, never a refusal: 500,
502, 504, and a 503 that does not come from the API server itself (a proxy answers so when its connection
breaks after it has passed the request on).
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from fencepost.kube.client import Json, Lost, NeverSent, Response, Result
from fencepost.ports import Cause, Refused, StoreRefused, StoreUnavailable, Unanswered
from fencepost.protocol.limits import MESSAGE_BYTES_MAX
from fencepost.protocol.task import cut_to_bytes

_POLICY: Final = "ValidatingAdmissionPolicy"
_WEBHOOK: Final = "admission webhook"
_TOO_LARGE: Final = ("request is too large", "larger than max")
_RULES: Final = frozenset({HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.FORBIDDEN})
CHANGED: Final = "what the write was decided on has changed"


def refusal_of(result: Result) -> Refused | Unanswered:
    """What a write that was no success came to."""
    match result:
        case NeverSent():
            return Refused(cause=Cause.OVERLOADED, message=result.message)
        case Lost():
            return Unanswered(message=result.message)
        case Response():
            return _refusal_of_response(result)


def problem_of_read(result: Result, what: str) -> StoreUnavailable | StoreRefused:
    """The exception for a read that was no success; `what` says what was to be read.

    Where asking again may help it is `StoreUnavailable`.
    """
    refusal = refusal_of(result)
    message = f"cannot read {what}: {refusal.message}"
    if isinstance(refusal, Unanswered):
        return StoreUnavailable(message)
    if refusal.cause is Cause.OVERLOADED:
        return StoreUnavailable(message, refusal.retry_after_seconds)
    if isinstance(result, Response) and result.status == HTTPStatus.GONE:
        return StoreUnavailable(message)  # the list changed under its pages: from the start again
    return StoreRefused(message, refusal.cause)


def message_of(response: Response) -> str:
    """The server's own sentence, cut to a length that fits a log and a dead letter."""
    said = response.body.get("message") if isinstance(response.body, dict) else response.body
    text = " ".join(str(said or "").split())
    return cut_to_bytes(text or f"HTTP {response.status} without a message", MESSAGE_BYTES_MAX)


def is_status(body: Json) -> bool:
    """Whether an answer's body is a Kubernetes Status, so that the API server itself said it."""
    return isinstance(body, dict) and body.get("kind") == "Status"


def _refusal_of_response(response: Response) -> Refused | Unanswered:
    message = message_of(response)
    cause = _cause_of(response, message)
    if cause is None:
        return Unanswered(message=f"HTTP {response.status}: {message}")
    if cause is Cause.PRECONDITION and not _details(response):
        message = CHANGED
    return Refused(cause=cause, message=message, retry_after_seconds=response.retry_after_seconds)


def _cause_of(response: Response, message: str) -> Cause | None:
    """None where the write may have been carried out."""
    status = response.status
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or (
        status == HTTPStatus.INTERNAL_SERVER_ERROR and any(words in message for words in _TOO_LARGE)
    ):
        return Cause.TOO_LARGE
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Cause.OVERLOADED if _turned_away(response) else None
    if status in _RULES:
        return _cause_of_rule(response, message)
    if status == HTTPStatus.CONFLICT:
        taken = is_status(response.body) and response.body.get("reason") == "AlreadyExists"
        return Cause.EXISTS if taken else Cause.PRECONDITION
    if status == HTTPStatus.UNAUTHORIZED or status < HTTPStatus.BAD_REQUEST:
        return Cause.FORBIDDEN  # a redirect is a login page
    if status == HTTPStatus.NOT_FOUND:
        return Cause.MISSING
    return Cause.OVERLOADED if status == HTTPStatus.TOO_MANY_REQUESTS else Cause.ADMISSION


def _cause_of_rule(response: Response, message: str) -> Cause:
    """422 and 403: a failed comparison, a rule, or a right that is missing."""
    if _POLICY in message or _WEBHOOK in message:
        return Cause.ADMISSION
    causes = _details(response).get("causes") or []
    if response.status == HTTPStatus.FORBIDDEN:
        return Cause.ADMISSION if causes else Cause.FORBIDDEN
    fields = {cause.get("field") for cause in causes}
    if not is_status(response.body):
        return Cause.ADMISSION
    return Cause.PRECONDITION if not fields or fields == {"metadata.uid"} else Cause.ADMISSION


def _turned_away(response: Response) -> bool:
    """503 of the API server itself with the advice to come again: it did not begin."""
    return (
        response.status == HTTPStatus.SERVICE_UNAVAILABLE
        and response.retry_after_seconds is not None
        and is_status(response.body)
    )


def _details(response: Response) -> dict[str, Json]:
    details = response.body.get("details") if is_status(response.body) else None
    return details if isinstance(details, dict) else {}
