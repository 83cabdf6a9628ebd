"""The ValidatingAdmissionPolicies: what even a buggy or hostile caller cannot do.

They see what the rules of a CRD cannot: annotations and labels, the caller, and free-form objects as a
whole. They run inside the write that replaces the object, on exactly the revision that is replaced, so there
is no window between check and write.

- `fencepost-fence`: the lease itself, for everyone.
- `fencepost-receipt`: who may write a receipt, for everyone.
- `fencepost-worker`: the four things a worker may do, for callers who may patch and not update leasedtasks.
- `fencepost-fanoutjob`: what a continuation may be, and the immutability of free-form objects.

Traps that shaped them: a variable of optional type lets everything pass, so each ends in `orValue`; `int()`
of garbage makes a policy refuse every later write, so old values are guarded too; a `messageExpression` may
not use a variable that asks the authorizer.
"""

from __future__ import annotations

from typing import Any, Final

from fencepost.api import names
from fencepost.api.policy import CREATE, UPDATE, Policy, Validation, Variable, words
from fencepost.api.policy_of_fence import FENCE
from fencepost.api.policy_of_workers import WORKER
from fencepost.protocol.fencing import TOKEN_PATTERN
from fencepost.protocol.limits import GROUP
from fencepost.protocol.task import OPERATOR_HOLDER, Reason

_OLD_TOKEN: Final = f"variables.oa[?'{names.FENCING_TOKEN}'].orValue('0')"
_HELD_BY: Final = "(variables.holder == '' ? 'nobody' : variables.holder)"

RECEIPT: Final = Policy(
    name="fencepost-receipt",
    resource=f"{names.LEASED_TASKS}/status",
    operations=(UPDATE,),
    variables=(
        Variable(name="oa", expression="oldObject.metadata.?annotations.orValue({})"),
        Variable(name="tokenText", expression=_OLD_TOKEN),
        Variable(
            name="token",
            expression=f"variables.tokenText.matches('{TOKEN_PATTERN}') ? int(variables.tokenText) : 0",
        ),
        Variable(name="holder", expression=f"variables.oa[?'{names.HOLDER}'].orValue('')"),
        Variable(name="account", expression=f"variables.oa[?'{names.HOLDER_ACCOUNT}'].orValue('')"),
        Variable(name="before", expression="oldObject.?status.?receipts.orValue([]).size()"),
        Variable(
            name="fresh",
            expression="object.?status.?receipts.orValue([]).filter(r, r.sequence > variables.before)",
        ),
        Variable(
            name="operator",
            expression=f"authorizer.group('{GROUP}').resource('{names.LEASED_TASKS}').subresource('status')"
            ".namespace(request.namespace).check('update').allowed()",
        ),
    ),
    validations=(
        Validation(
            expression="variables.fresh.all(r, r.recordedBy == request.userInfo.username)",
            message="recordedBy must be your own account",
            sentence="'recordedBy must be your own account, ' + request.userInfo.username",
        ),
        Validation(
            expression="variables.fresh.all(r, r.fencingToken == variables.token)",
            message="stale fencing token",
            sentence="'stale fencing token: the current one is ' + string(variables.token) + ', held by ' + "
            f"{_HELD_BY}",
            forbidden=True,
        ),
        Validation(
            expression="variables.fresh.all(r, (variables.holder != '' && r.holder == variables.holder && "
            "variables.account == request.userInfo.username) || "
            f"(r.holder == '{OPERATOR_HOLDER}' && variables.holder == '' && variables.operator))",
            message="not the holder",
            sentence="'not the holder: token ' + string(variables.token) + ' is held by ' + "
            f"{_HELD_BY} + (variables.account == '' ? '' : ' (' + variables.account + ')')",
            forbidden=True,
        ),
        Validation(
            expression=f"variables.fresh.all(r, !has(r.reason) || (r.holder == '{OPERATOR_HOLDER}' && "
            f"r.reason in {words([reason.value for reason in Reason])}))",
            message="only the operator gives a receipt a reason",
        ),
        Validation(
            expression="variables.operator || variables.fresh.size() > 0 || "
            "object.?status == oldObject.?status",
            message="a worker changes status only together with a new receipt",
        ),
    ),
)

_BRANCHES: Final = "{}.spec.branches.transformMapEntry(i, b, {{b.name: b.?request}})"

# What the operator has to look into when it makes the continuation, hours later. The rest of such an object
# is checked by its own schema, when it is made.
_SHAPE_OF_CONTINUATION: Final = (
    Validation(
        on=CREATE,
        expression="!has(object.spec.continuation) || has(variables.after.spec)",
        message="spec.continuation.template.spec is missing: nothing can be made without it",
    ),
    Validation(
        on=CREATE,
        expression="['labels', 'annotations'].all(k, !(k in variables.afterMetadata) || "
        "(type(variables.afterMetadata[k]) == map && variables.afterMetadata[k].all(n, "
        "type(variables.afterMetadata[k][n]) == string)))",
        message="spec.continuation.template.metadata: labels and annotations are keys with texts",
    ),
    Validation(
        on=CREATE,
        expression=f"variables.afterKind != '{names.LEASED_TASK}' || !has(variables.afterSpec.request) || "
        "type(variables.afterSpec.request) == map",
        message="spec.continuation.template.spec.request is an object",
    ),
    Validation(
        on=CREATE,
        expression=f"variables.afterKind != '{names.FAN_OUT_JOB}' || (has(variables.afterSpec.branches) && "
        "type(variables.afterSpec.branches) == list && variables.afterSpec.branches.all(b, type(b) == map "
        "&& (!has(b.request) || type(b.request) == map)))",
        message="spec.continuation.template.spec.branches is a list of objects, each with a name and a "
        "request that is an object",
    ),
    Validation(
        on=CREATE,
        expression="variables.afterKind != 'Job' || (has(variables.afterSpec.template) && "
        "type(variables.afterSpec.template) == map && has(variables.afterSpec.template.spec) && "
        "type(variables.afterSpec.template.spec) == map && ['volumes', 'initContainers', 'containers'].all("
        "k, !(k in variables.afterSpec.template.spec) || (type(variables.afterSpec.template.spec[k]) == list "
        "&& variables.afterSpec.template.spec[k].all(one, type(one) == map))))",
        message="spec.continuation.template.spec.template.spec is the spec of a pod: its containers and "
        "volumes are lists of objects",
    ),
)

FAN_OUT_JOB: Final = Policy(
    name="fencepost-fanoutjob",
    resource=names.FAN_OUT_JOBS,
    operations=(CREATE, UPDATE),
    variables=(
        Variable(name="after", expression="object.spec.?continuation.?template.orValue({})"),
        Variable(name="afterKind", expression="variables.after.?kind.orValue('')"),
        Variable(name="afterMetadata", expression="variables.after.?metadata.orValue({})"),
        Variable(name="afterSpec", expression="variables.after.?spec.orValue({})"),
        Variable(
            name="jobs",
            expression="authorizer.group('batch').resource('jobs').namespace(request.namespace)"
            ".check('create').allowed()",
        ),
    ),
    validations=(
        *_SHAPE_OF_CONTINUATION,
        Validation(
            on=CREATE,
            expression="variables.after.?kind.orValue('') != 'Job' || variables.jobs",
            message="the continuation may be a Job only if you may create jobs",
            sentence="request.userInfo.username + ' may not create jobs in ' + request.namespace + "
            "', so the continuation may not be a Job'",
            forbidden=True,
        ),
        Validation(
            on=CREATE,
            # Nesting must be no way around: what is inside is made by the operator, which may create jobs.
            expression=f"variables.after.?kind.orValue('') != '{names.FAN_OUT_JOB}' || "
            "!has(variables.after.spec) || !has(variables.after.spec.continuation) || variables.jobs",
            message="a continuation that is a FanOutJob may have its own continuation only if you may create "
            "jobs",
            forbidden=True,
        ),
        Validation(
            on=UPDATE,
            # The rules of the CRD do not see that a key inside a free-form object was renamed.
            expression=f"{_BRANCHES.format('object')} == {_BRANCHES.format('oldObject')} && "
            "object.spec.?continuation == oldObject.spec.?continuation && "
            "object.spec.?template == oldObject.spec.?template",
            message="spec.branches, spec.continuation and spec.template are immutable: make another object "
            "instead",
        ),
    ),
)

# The fence comes last: readiness is probed by a write that it refuses, and what bites last proves the rest.
POLICIES: Final = (RECEIPT, WORKER, FAN_OUT_JOB, FENCE)


def policies() -> list[dict[str, Any]]:
    """All policies, then all bindings, in the order in which they are written."""
    made = [policy.as_objects() for policy in POLICIES]
    return [policy for policy, _ in made] + [binding for _, binding in made]
