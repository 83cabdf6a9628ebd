"""The policy for workers: whoever may patch leasedtasks and not update them.

A wider rule would break the garbage collector, which removes owners and finalizers, and people with the edit
role; both may update. A worker claims, renews, releases and submits, for what its own account holds, and
does nothing else.
"""

from __future__ import annotations

from typing import Final

from fencepost.api import names
from fencepost.api.policy import UPDATE, Policy, Validation, Variable, words
from fencepost.api.policy_of_fence import METADATA, PREFIX, annotation
from fencepost.protocol.fencing import COUNTER_PATTERN
from fencepost.protocol.lease import ENDED_BY_WORKER
from fencepost.protocol.limits import GROUP

KEPT_BY_CLAIM: Final = (names.FAILURES, names.LAST_LEASE)
KEPT_BY_HEARTBEAT: Final = tuple(
    name for name in names.LEASE_ANNOTATIONS if name not in (names.RENEWALS, names.RENEWED_AT, names.PROGRESS)
)
WORKER_ENDS: Final = sorted(end.value for end in ENDED_BY_WORKER)

_VARIABLES: Final = (
    *METADATA,
    Variable(
        name="mine",
        expression="variables.oldHolder != '' && "
        f"{annotation(names.HOLDER_ACCOUNT, old=True)} == request.userInfo.username",
    ),
    Variable(name="oldRenewalsText", expression=annotation(names.RENEWALS, old=True, default="0")),
    Variable(
        name="nextRenewals",
        expression=f"variables.oldRenewalsText.matches('{COUNTER_PATTERN}') ? "
        "string(int(variables.oldRenewalsText) + 1) : '0'",
    ),
    Variable(
        name="verb",
        expression="variables.tokenText != variables.oldTokenText ? 'claim' : "
        "variables.oldHolder != '' && variables.holder == '' ? 'release' : 'heartbeat'",
    ),
)


def _unchanged(keys: tuple[str, ...]) -> str:
    return f"{words(keys)}.all(k, variables.a[?k] == variables.oa[?k])"


_VALIDATIONS: Final = (
    Validation(
        expression="object.spec == oldObject.spec && "
        "object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences && "
        "object.metadata.?finalizers == oldObject.metadata.?finalizers",
        message="a worker may not change spec, owners or finalizers",
    ),
    Validation(
        expression=f"variables.l.all(k, k in {words(names.LEASE_LABELS)} || (k in variables.ol && "
        f"variables.ol[k] == variables.l[k])) && variables.ol.all(k, k in {words(names.LEASE_LABELS)} || "
        "k in variables.l)",
        message=f"a worker changes no labels but {' and '.join(names.LEASE_LABELS)}",
    ),
    Validation(
        expression=f"variables.a.all(k, k in {words(names.LEASE_ANNOTATIONS)} || (k in variables.oa && "
        "variables.oa[k] == variables.a[k])) && "
        f"variables.oa.all(k, k in {words(names.LEASE_ANNOTATIONS)} || k in variables.a)",
        message=f"a worker changes no annotations but those of the lease ({PREFIX}...)",
    ),
    Validation(
        expression="variables.verb == 'claim' || variables.mine",
        message="not the holder",
        sentence="'not the holder: token ' + variables.oldTokenText + ' is held by ' + "
        "(variables.oldHolder == '' ? 'nobody' : variables.oldHolder + ' (' + "
        f"{annotation(names.HOLDER_ACCOUNT, old=True, default='?')} + ')')",
        forbidden=True,
    ),
    Validation(
        expression=f"variables.verb != 'claim' || {_unchanged(KEPT_BY_CLAIM)}",
        message="a claim leaves failures and last-lease as they are",
    ),
    Validation(
        expression="variables.verb != 'heartbeat' || (variables.hold == variables.oldHold && "
        f"{_unchanged(KEPT_BY_HEARTBEAT)} && "
        f"{annotation(names.RENEWALS, default='0')} == variables.nextRenewals)",
        message="a heartbeat raises renewals by one and sets renewed-at and progress, and nothing else",
        sentence="'a heartbeat sets renewals to ' + variables.nextRenewals + ', renewed-at and progress, "
        "and nothing else'",
    ),
    Validation(
        expression=f"variables.verb != 'release' || variables.end in {words(WORKER_ENDS)}",
        message=f"a worker ends its lease as one of {', '.join(WORKER_ENDS)}",
    ),
)

WORKER: Final = Policy(
    name="fencepost-worker",
    resource=names.LEASED_TASKS,
    operations=(UPDATE,),
    only_if=(
        Variable(
            name="may-patch-but-not-update",
            expression=f"!authorizer.group('{GROUP}').resource('{names.LEASED_TASKS}')"
            ".namespace(request.namespace).name(request.name).check('update').allowed()",
        ),
    ),
    variables=_VARIABLES,
    validations=_VALIDATIONS,
)
