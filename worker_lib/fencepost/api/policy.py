"""A ValidatingAdmissionPolicy as data, and how it is written down together with its binding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fencepost.protocol.limits import GROUP

API_VERSION: Final = "admissionregistration.k8s.io/v1"
CREATE: Final = "CREATE"
UPDATE: Final = "UPDATE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A named expression; it is evaluated at most once, and only where it is used."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What must hold, and the sentence if it does not.

    `sentence` is a CEL expression that makes a better one; `message` stands in where that fails. `on` limits
    the rule to one operation. `forbidden` answers 403 instead of 422: the caller may not, whatever it sends.
    """

    expression: str
    message: str
    sentence: str = ""
    on: str = ""
    forbidden: bool = False

    def as_object(self) -> dict[str, str]:
        """The entry of `spec.validations`."""
        guarded = f"request.operation != '{self.on}' || ({self.expression})" if self.on else self.expression
        whole = {
            "expression": guarded,
            "message": self.message,
            "messageExpression": self.sentence,
            "reason": "Forbidden" if self.forbidden else "",
        }
        return {key: text for key, text in whole.items() if text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One policy. It fails closed: what cannot be judged is refused."""

    name: str
    resource: str
    operations: tuple[str, ...]
    variables: tuple[Variable, ...]
    validations: tuple[Validation, ...]
    only_if: tuple[Variable, ...] = ()

    def as_objects(self) -> list[dict[str, Any]]:
        """The policy and the binding that puts it in force everywhere."""
        return [self._policy(), self._binding()]

    def _policy(self) -> dict[str, Any]:
        rules = {
            "apiGroups": [GROUP],
            "apiVersions": ["*"],
            "operations": list(self.operations),
            "resources": [self.resource],
        }
        spec: dict[str, Any] = {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rules]},
            "variables": [_named(variable) for variable in self.variables],
            "validations": [validation.as_object() for validation in self.validations],
        }
        if self.only_if:
            spec["matchConditions"] = [_named(condition) for condition in self.only_if]
        return {
            "apiVersion": API_VERSION,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": self.name},
            "spec": spec,
        }

    def _binding(self) -> dict[str, Any]:
        return {
            "apiVersion": API_VERSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": self.name},
            "spec": {"policyName": self.name, "validationActions": ["Deny"]},
        }


def _named(variable: Variable) -> dict[str, str]:
    return {"name": variable.name, "expression": variable.expression}


def words(texts: tuple[str, ...] | list[str]) -> str:
    """A CEL list of these texts."""
    return "[" + ", ".join(f"'{text}'" for text in texts) + "]"
