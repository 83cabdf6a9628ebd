"""The policy that guards the lease in a task's metadata, for everyone.

FENCE-01 is here: the token is a canonical number that grows by exactly one, together with a lawful claim,
and by nothing else; one write of 2^53 would otherwise brick a task. How a lease may end is generated from
the protocol's own table.
"""

from __future__ import annotations

from typing import Final

from fencepost.api import names
from fencepost.api.policy import CREATE, UPDATE, Policy, Validation, Variable, words
from fencepost.protocol import limits
from fencepost.protocol.fencing import COUNTER_PATTERN, HOLDER_PATTERN, TOKEN_PATTERN
from fencepost.protocol.lease import LEASE_ENDS
from fencepost.protocol.task import Hold, State

PREFIX: Final = f"{limits.GROUP}/"
ONLY_BY_CLAIM: Final = (names.HOLDER, names.HOLDER_ACCOUNT, names.ACQUIRED_AT, names.OUTBOX_MARK)
RECORD_OF_SETTLED: Final = tuple(
    name for name in names.LEASE_ANNOTATIONS if name not in (names.RENEWED_AT, names.PROGRESS)
)
LONG_TEXTS: Final = (names.PROGRESS, names.LAST_LEASE)
SHORT_TEXT_BYTES_MAX: Final = max(
    limits.HOLDER_BYTES_MAX, limits.ACCOUNT_BYTES_MAX, limits.BRANCH_NAME_BYTES_MAX
)

HOLD_AFTER: Final = (
    "{"
    + ", ".join(
        f"'{state.value} {end.value}': '{effect.hold.value if effect.hold else ''}'"
        for (state, end), effect in LEASE_ENDS.items()
    )
    + "}"
)
COUNTING: Final = words(
    [f"{state.value} {end.value}" for (state, end), effect in LEASE_ENDS.items() if effect.counts]
)


def annotation(name: str, *, old: bool = False, default: str = "") -> str:
    """CEL: the text of an annotation, of the object that is there or the one that comes."""
    return f"variables.{'oa' if old else 'a'}[?'{name}'].orValue('{default}')"


def label(name: str, *, old: bool = False) -> str:
    """CEL: the text of a label."""
    return f"variables.{'ol' if old else 'l'}[?'{name}'].orValue('')"


def _number(text: str, pattern: str) -> str:
    """CEL: the number that `text` says, 0 if it says none: garbage that is there already harms nothing."""
    return f"{text}.matches('{pattern}') ? int({text}) : 0"


# Shared with the policy of the workers: the old and the new metadata, and what happens to the lease.
METADATA: Final = (
    Variable(name="a", expression="object.metadata.?annotations.orValue({})"),
    Variable(name="l", expression="object.metadata.?labels.orValue({})"),
    Variable(name="oa", expression="oldObject == null ? {} : oldObject.metadata.?annotations.orValue({})"),
    Variable(name="ol", expression="oldObject == null ? {} : oldObject.metadata.?labels.orValue({})"),
    Variable(name="tokenText", expression=annotation(names.FENCING_TOKEN, default="0")),
    Variable(name="oldTokenText", expression=annotation(names.FENCING_TOKEN, old=True, default="0")),
    Variable(name="holder", expression=annotation(names.HOLDER)),
    Variable(name="oldHolder", expression=annotation(names.HOLDER, old=True)),
    Variable(name="hold", expression=label(names.HOLD)),
    Variable(name="oldHold", expression=label(names.HOLD, old=True)),
    Variable(name="lastLease", expression=annotation(names.LAST_LEASE)),
    Variable(name="ending", expression="variables.oldTokenText + ' ' + variables.oldHolder + ' '"),
    Variable(
        name="end",
        expression="variables.lastLease.startsWith(variables.ending) ? "
        "variables.lastLease.substring(variables.ending.size()).split(' ')[0] : ''",
    ),
)

_VARIABLES: Final = (
    *METADATA,
    Variable(
        name="canonical",
        expression=f"variables.tokenText.matches('{TOKEN_PATTERN}') && "
        f"int(variables.tokenText) <= {limits.FENCING_TOKEN_MAX}",
    ),
    Variable(name="token", expression="variables.canonical ? int(variables.tokenText) : -1"),
    Variable(name="oldToken", expression=_number("variables.oldTokenText", TOKEN_PATTERN)),
    Variable(name="claims", expression="variables.token == variables.oldToken + 1"),
    Variable(
        name="ends",
        expression="!variables.claims && variables.oldHolder != '' && variables.holder == ''",
    ),
    Variable(name="settled", expression="oldObject != null && oldObject.?status.?settled.orValue(false)"),
    Variable(
        name="state",
        expression=f"oldObject == null ? '' : oldObject.?status.?state.orValue('{State.OPEN.value}')",
    ),
    Variable(name="endsAs", expression="variables.state + ' ' + variables.end"),
    Variable(name="holdAfter", expression=HOLD_AFTER),
    Variable(name="failuresText", expression=annotation(names.FAILURES, default="0")),
    Variable(name="oldFailuresText", expression=annotation(names.FAILURES, old=True, default="0")),
    Variable(name="oldFailures", expression=_number("variables.oldFailuresText", COUNTER_PATTERN)),
    Variable(
        name="failuresAfter",
        expression=f"variables.endsAs in {COUNTING} && variables.oldFailures < {limits.COUNTER_MAX} ? "
        "variables.oldFailures + 1 : variables.oldFailures",
    ),
    Variable(name="renewalsText", expression=annotation(names.RENEWALS, default="0")),
    Variable(name="oldRenewalsText", expression=annotation(names.RENEWALS, old=True, default="0")),
    Variable(name="renewals", expression=_number("variables.renewalsText", COUNTER_PATTERN)),
    Variable(name="oldRenewals", expression=_number("variables.oldRenewalsText", COUNTER_PATTERN)),
)

_NEW_OBJECT: Final = (
    Validation(
        on=CREATE,
        expression=f"variables.a.all(k, !k.startsWith('{PREFIX}') || k == '{names.BRANCH}') && "
        f"variables.l.all(k, !k.startsWith('{PREFIX}') || k == '{names.JOB_UID}')",
        message="a new LeasedTask carries no lease",
        sentence="'a new LeasedTask carries no lease: remove the annotations and labels ' + "
        f"(variables.a.map(k, k).filter(k, k != '{names.BRANCH}') + "
        f"variables.l.map(k, k).filter(k, k != '{names.JOB_UID}'))"
        f".filter(k, k.startsWith('{PREFIX}')).join(', ')",
    ),
    Validation(
        expression=f"variables.a.all(k, !k.startsWith('{PREFIX}') || bytes(variables.a[k]).size() <= "
        f"(k in {words(LONG_TEXTS)} ? {limits.LAST_LEASE_BYTES_MAX} : {SHORT_TEXT_BYTES_MAX}))",
        message=f"annotations of {limits.GROUP} take at most {SHORT_TEXT_BYTES_MAX} bytes, progress and "
        f"last-lease at most {limits.LAST_LEASE_BYTES_MAX}",
    ),
)

_TOKEN: Final = (
    Validation(
        on=UPDATE,
        expression=f"'{names.FENCING_TOKEN}' in variables.a || !('{names.FENCING_TOKEN}' in variables.oa)",
        message="the fencing token may not be removed",
        sentence="'the fencing token ' + variables.oldTokenText + ' may not be removed'",
    ),
    Validation(
        on=UPDATE,
        expression="variables.canonical",
        message=f"{names.FENCING_TOKEN} must be a whole number from 0 to {limits.FENCING_TOKEN_MAX} without "
        "leading zeros",
        sentence=f"'{names.FENCING_TOKEN} must be a whole number from 0 to {limits.FENCING_TOKEN_MAX} "
        "without leading zeros, got ' + variables.tokenText",
    ),
    Validation(
        on=UPDATE,
        expression="!variables.canonical || variables.token == variables.oldToken || variables.claims",
        message="the fencing token may stay or grow by one",
        sentence="'the fencing token is ' + string(variables.oldToken) + ': it may stay or become ' + "
        "string(variables.oldToken + 1) + ', not ' + variables.tokenText",
    ),
)

_CLAIM: Final = (
    Validation(
        on=UPDATE,
        expression="!variables.claims || (variables.oldHolder == '' && variables.oldHold == '' && "
        "!variables.settled && !oldObject.spec.?suspend.orValue(false) && "
        "!oldObject.spec.?external.orValue(false))",
        message="not claimable",
        sentence="'not claimable: ' + (variables.settled ? 'settled' : variables.oldHolder != '' ? 'held by '"
        " + variables.oldHolder + ' with token ' + variables.oldTokenText : variables.oldHold != '' ? "
        "'on hold (' + variables.oldHold + ')' : oldObject.spec.?external.orValue(false) ? 'external' : "
        "'suspended')",
        forbidden=True,
    ),
    Validation(
        on=UPDATE,
        expression=f"!variables.claims || (variables.holder.matches('{HOLDER_PATTERN}') && "
        f"variables.hold == '{Hold.LEASED.value}' && "
        f"{annotation(names.HOLDER_ACCOUNT)} == request.userInfo.username && "
        f"{annotation(names.RENEWALS)} == '0' && "
        f"{label(names.OUTBOX)} == variables.holder.split('/')[0])",
        message="a claim sets holder (outbox UUID/incarnation), holder-account (your own), renewals 0, the "
        "label hold=Leased and the label outbox (the UUID of the holder)",
    ),
    Validation(
        on=UPDATE,
        expression=f"variables.claims || {words(ONLY_BY_CLAIM)}.all(k, !(k in variables.a) || "
        "(k in variables.oa && variables.a[k] == variables.oa[k]))",
        message="holder, holder-account, acquired-at and outbox-mark change only with a claim, which raises "
        "the token by one",
    ),
    Validation(
        on=UPDATE,
        expression=f"variables.claims || !('{names.OUTBOX}' in variables.l) || "
        f"{label(names.OUTBOX)} == {label(names.OUTBOX, old=True)}",
        message="the label outbox changes only with a claim",
    ),
    Validation(
        on=UPDATE,
        expression=f"(variables.holder != '') == (variables.hold == '{Hold.LEASED.value}') && "
        f"(variables.holder != '') == ('{names.HOLDER_ACCOUNT}' in variables.a) && "
        f"(variables.holder != '') == ('{names.OUTBOX}' in variables.l)",
        message="the annotations holder and holder-account, the label hold=Leased and the label outbox come "
        "and go together",
    ),
)

_COUNTERS: Final = (
    Validation(
        on=UPDATE,
        expression=f"variables.renewalsText.matches('{COUNTER_PATTERN}') && "
        f"variables.failuresText.matches('{COUNTER_PATTERN}')",
        message=f"renewals and failures are whole numbers from 0 to {limits.COUNTER_MAX} without leading "
        "zeros",
    ),
    Validation(
        on=UPDATE,
        expression="variables.claims || variables.holder == '' || "
        "variables.renewals >= variables.oldRenewals",
        message="renewals never falls during a lease",
        sentence="'renewals never falls during a lease: it is ' + variables.oldRenewalsText",
    ),
)

_END: Final = (
    Validation(
        on=UPDATE,
        expression="!variables.ends || variables.lastLease.startsWith(variables.ending)",
        message="last-lease names the lease that ends: TOKEN HOLDER END[ message]",
        sentence="'last-lease names the lease that ends: ' + variables.ending + 'END[ message]'",
    ),
    Validation(
        on=UPDATE,
        expression="!variables.ends || variables.end == '' || variables.settled || "
        "(variables.endsAs in variables.holdAfter && "
        "variables.hold == variables.holdAfter[variables.endsAs] && "
        "variables.failuresText == string(variables.failuresAfter))",
        message="no lease ends like this",
        sentence="variables.endsAs in variables.holdAfter ? 'a lease that ends as ' + variables.end + "
        "' in state ' + variables.state + ' leaves ' + (variables.holdAfter[variables.endsAs] == '' ? "
        "'no hold' : 'hold=' + variables.holdAfter[variables.endsAs]) + ' and failures=' + "
        "string(variables.failuresAfter) : 'no lease ends as ' + variables.end + ' in state ' + "
        "variables.state",
    ),
    Validation(
        on=UPDATE,
        expression=f"variables.ends || variables.a[?'{names.LAST_LEASE}'] == "
        f"variables.oa[?'{names.LAST_LEASE}']",
        message="last-lease changes only when a lease ends",
    ),
    Validation(
        on=UPDATE,
        expression=f"variables.hold in {words(['', *(hold.value for hold in Hold)])}",
        message=f"{names.HOLD} is {', '.join(hold.value for hold in Hold)}, or absent",
    ),
    Validation(
        on=UPDATE,
        expression="variables.claims || variables.ends || variables.hold == '' || "
        "variables.hold == variables.oldHold",
        message="a hold is set only by a claim or by the end of a lease",
    ),
)

_REST: Final = (
    Validation(
        on=UPDATE,
        expression=f"!variables.settled || ({words(RECORD_OF_SETTLED)}.all(k, variables.a[?k] == "
        f"variables.oa[?k]) && {words(names.LEASE_LABELS)}.all(k, variables.l[?k] == variables.ol[?k]))",
        message="the task is settled: its lease stays as the record of who did it",
    ),
    Validation(
        on=UPDATE,
        expression=f"variables.a[?'{names.BRANCH}'] == variables.oa[?'{names.BRANCH}'] && "
        f"variables.l[?'{names.JOB_UID}'] == variables.ol[?'{names.JOB_UID}']",
        message=f"{names.BRANCH} and {names.JOB_UID} are set when the task is made and never change",
    ),
    Validation(
        on=UPDATE,
        # The rule of the CRD does not see that a key inside was renamed.
        expression="object.spec.?request == oldObject.spec.?request",
        message="spec.request is immutable: make another object instead",
    ),
)

FENCE: Final = Policy(
    name="fencepost-fence",
    resource=names.LEASED_TASKS,
    operations=(CREATE, UPDATE),
    variables=_VARIABLES,
    validations=(*_NEW_OBJECT, *_TOKEN, *_CLAIM, *_COUNTERS, *_REST[:1], *_END, *_REST[1:]),
)
