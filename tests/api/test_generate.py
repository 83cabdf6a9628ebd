"""The files in crds/ are what the models make, small enough to apply, and say what each field is for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fencepost.api import generate
from fencepost.api.crds import fan_out_jobs, leased_tasks
from fencepost.api.policies import POLICIES
from fencepost.api.rules import RULES
from fencepost.protocol import limits

CRDS = Path(__file__).parents[2] / "crds"
CLIENT_SIDE_APPLY_BYTES_MAX = 200_000

# What no schema can say; each is checked by the library and has tests of its own.
NOT_IN_A_SCHEMA = {
    "REQUEST_BYTES_MAX": "a free-form object has no size in a schema; in its description",
    "REQUEST_DEPTH_MAX": "nor a depth",
    "JOB_SPEC_BYTES_MAX": "the size of a whole spec",
    "JOB_SPEC_BYTES_MAX_CLIENT_SIDE": "the size of a whole spec",
    "OBJECT_BYTES_MAX": "the size of a whole object",
    "SNAPSHOT_IN_REQUEST_BYTES_MAX": "what the operator puts into a request",
    "PROGRESS_BYTES_MAX": "the same number as LAST_LEASE_BYTES_MAX, in one rule",
    "HEARTBEAT_FRACTION": "how often a worker renews",
    "ERROR_TEXT_BYTES_MAX": "a text of the outbox",
}


def all_text() -> str:
    return "\n".join(generate.generated_files().values())


def test_the_files_are_not_stale() -> None:
    assert generate.stale_files(CRDS) == []


def test_a_stale_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main([str(tmp_path)]) == 0
    assert generate.main(["--check", str(tmp_path)]) == 0
    (tmp_path / "policies.yaml").write_text("kind: Nothing\n")
    (tmp_path / "rbac.yaml").unlink()
    capsys.readouterr()
    assert generate.main(["--check", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "policies.yaml is stale: run `make generate`" in told
    assert "rbac.yaml is stale" in told
    assert "leasedtasks.yaml" not in told
    assert (tmp_path / "policies.yaml").read_text() == "kind: Nothing\n"


def test_the_same_models_make_the_same_bytes() -> None:
    assert generate.generated_files() == generate.generated_files()


def test_the_files_are_what_they_are_called() -> None:
    kinds = {
        name: {document["kind"] for document in yaml.safe_load_all(text)}
        for name, text in generate.generated_files().items()
    }
    assert kinds == {
        "leasedtasks.yaml": {"CustomResourceDefinition"},
        "fanoutjobs.yaml": {"CustomResourceDefinition"},
        "policies.yaml": {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"},
        "rbac.yaml": {"ClusterRole"},
        "Kustomization": {"Kustomization"},
    }


@pytest.mark.parametrize("name", ["leasedtasks.yaml", "fanoutjobs.yaml", "policies.yaml"])
def test_a_file_can_be_applied_client_side(name: str) -> None:
    assert len(generate.generated_files()[name].encode()) < CLIENT_SIDE_APPLY_BYTES_MAX


def described_nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every named field of a schema, with its path."""
    for name, node in schema.get("properties", {}).items():
        yield f"{path}.{name}", node
        yield from described_nodes(node, f"{path}.{name}")
    for inside in ("items", "additionalProperties"):
        if isinstance(schema.get(inside), dict):
            yield f"{path}[]", schema[inside]
            yield from described_nodes(schema[inside], f"{path}[]")


def schema_of(definition: dict[str, Any]) -> dict[str, Any]:
    (version,) = definition["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


@pytest.mark.parametrize("definition", [leased_tasks(), fan_out_jobs()], ids=["LeasedTask", "FanOutJob"])
def test_every_field_has_a_description(definition: dict[str, Any]) -> None:
    nodes = dict(described_nodes(schema_of(definition)))
    assert len(nodes) > 30
    silent = [path for path, node in nodes.items() if not node.get("description") and path != ".metadata"]
    assert silent == []
    assert schema_of(definition)["description"]


@pytest.mark.parametrize("definition", [leased_tasks(), fan_out_jobs()], ids=["LeasedTask", "FanOutJob"])
def test_everything_that_can_grow_is_bounded(definition: dict[str, Any]) -> None:
    bounds = {"array": "maxItems", "string": "maxLength"}
    unbounded = [
        path
        for path, node in described_nodes(schema_of(definition))
        if bounds.get(node.get("type", ""), "type") not in node and not {"enum", "format"} & set(node)
        if path not in (".apiVersion", ".kind")
    ]
    assert unbounded == []
    maps = [node for _, node in described_nodes(schema_of(definition)) if "additionalProperties" in node]
    assert all("maxProperties" in node for node in maps)


@pytest.mark.parametrize("definition", [leased_tasks(), fan_out_jobs()], ids=["LeasedTask", "FanOutJob"])
def test_a_schema_is_structural(definition: dict[str, Any]) -> None:
    for path, node in described_nodes(schema_of(definition)):
        assert "type" in node, path
        assert not {"$ref", "anyOf", "title", "const", "oneOf"} & set(node), path
        assert node.get("additionalProperties") is not False, path
        if node["type"] == "integer":
            assert node["format"] == "int64", path


def test_every_limit_is_a_bound_or_says_why_not() -> None:
    text = all_text()
    numbers = {
        name: value
        for name, value in vars(limits).items()
        if name.isupper() and isinstance(value, int) and not name.startswith("_")
    }
    absent = {name for name, value in numbers.items() if str(value) not in text}
    assert absent - set(NOT_IN_A_SCHEMA) == set()
    assert set(NOT_IN_A_SCHEMA) <= set(numbers)


def test_what_is_immutable_is_every_field_but_two() -> None:
    for kind, changeable, model in (
        ("LeasedTask", {"suspend", "priority"}, "LeasedTaskSpec"),
        ("FanOutJob", {"suspend", "parallelism"}, "FanOutJobSpec"),
    ):
        definition = leased_tasks() if kind == "LeasedTask" else fan_out_jobs()
        fields = set(schema_of(definition)["properties"]["spec"]["properties"])
        (rule,) = (rule for rule in RULES[model] if "immutable" in rule.message)
        compared = {name for name in fields if f"self.{name}" in rule.rule}
        assert compared == fields - changeable


def test_every_rule_has_its_place() -> None:
    """A rule under a name that no model has would be lost without a word."""
    placed = 0
    for definition in (leased_tasks(), fan_out_jobs()):
        schema = schema_of(definition)
        nodes = [schema, *(node for _, node in described_nodes(schema))]
        placed += sum(len(node.get("x-kubernetes-validations", ())) for node in nodes)
    assert placed == sum(len(rules) for rules in RULES.values())


def test_policies_fail_closed_and_are_in_force() -> None:
    for policy in POLICIES:
        written, binding = policy.as_objects()
        assert written["spec"]["failurePolicy"] == "Fail"
        assert binding["spec"]["policyName"] == written["metadata"]["name"]
        assert binding["spec"]["validationActions"] == ["Deny"]
        for variable in written["spec"]["variables"]:
            optional = ".?" in variable["expression"] or "[?" in variable["expression"]
            assert not optional or "orValue(" in variable["expression"], variable["name"]


def test_no_role_of_people_writes_a_status() -> None:
    documents = yaml.safe_load_all(generate.generated_files()["rbac.yaml"])
    roles = {role["metadata"]["name"]: role["rules"] for role in documents}
    for name in ("fencepost-view", "fencepost-edit", "fencepost-admin"):
        for rule in roles[name]:
            if any(resource.endswith("/status") for resource in rule["resources"]):
                assert rule["verbs"] == ["get"]
    worker = {(tuple(rule["resources"]), tuple(rule["verbs"])) for rule in roles["fencepost-worker"]}
    assert worker == {
        (("leasedtasks",), ("get", "list", "watch", "patch")),
        (("leasedtasks/status",), ("get", "patch")),
        (("fanoutjobs",), ("get",)),
    }
