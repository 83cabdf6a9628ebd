"""What people write is understood as kubectl understands it, or refused in a sentence that says where."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.api.manifest import JobManifest, ManifestUnreadable, TaskManifest, load_manifests
from fencepost.protocol import limits
from fencepost.protocol.job import ContinuationKind
from fencepost.protocol.task import RetryPolicy, UnknownPolicy
from tests.api.manifests import JOB, LAWFUL, ONLY_OURS, TASK, UNLAWFUL, in_json


def refusal(text: str) -> str:
    with pytest.raises(ManifestUnreadable) as refused:
        load_manifests(text, source="job.yaml")
    return str(refused.value)


@pytest.mark.parametrize("text", LAWFUL.values(), ids=LAWFUL)
def test_a_lawful_manifest_is_taken(text: str) -> None:
    (found,) = load_manifests(text, source="job.yaml")
    assert found.namespace == "default"


@pytest.mark.parametrize(("text", "sentence"), UNLAWFUL.values(), ids=UNLAWFUL)
def test_an_unlawful_manifest_is_refused_with_its_place(text: str, sentence: str) -> None:
    assert sentence in refusal(text)


@pytest.mark.parametrize(("text", "sentence"), ONLY_OURS.values(), ids=ONLY_OURS)
def test_what_would_not_mean_what_it_looks_like_is_refused(text: str, sentence: str) -> None:
    assert sentence in refusal(text)


def test_every_field_arrives() -> None:
    (found,) = load_manifests(LAWFUL["everything"], source="job.yaml")
    assert isinstance(found, JobManifest)
    spec = found.spec
    assert [(branch.name, branch.request) for branch in spec.branches] == [("a", '{"x":1}')]
    assert spec.template.queue == "feeds"
    assert spec.template.priority == 9
    assert spec.template.lease_duration_seconds == 3600
    assert spec.template.retry_policy == RetryPolicy(
        max_failures=0, backoff_base_seconds=1, backoff_max_seconds=86_400
    )
    assert spec.template.active_deadline_seconds == 31_536_000
    assert spec.template.unknown_policy is UnknownPolicy.RECLAIM
    assert spec.template.external
    assert (spec.parallelism, spec.suspend) == (1024, True)
    assert (spec.active_deadline_seconds, spec.ttl_seconds_after_finished) == (60, 0)


def test_names_and_namespaces() -> None:
    text = TASK.replace("name: task", "name: a.b-c\n  namespace: north") + "  request: {b: 1, a: 2}\n"
    (found,) = load_manifests(text, source="x")
    assert isinstance(found, TaskManifest)
    assert (found.key_name, found.namespace) == ("a.b-c", "north")
    assert found.spec.request == '{"a":2,"b":1}'


def test_a_continuation_arrives_whole() -> None:
    (found,) = load_manifests(LAWFUL["a Job after"], source="x")
    assert isinstance(found, JobManifest)
    assert found.spec.continuation is not None
    assert found.spec.continuation.kind is ContinuationKind.JOB
    assert json.loads(found.spec.continuation.template)["spec"] == {
        "template": {"spec": {"containers": [{"name": "c"}]}}
    }


def test_several_documents_are_several_manifests() -> None:
    text = "---\n".join([TASK + "  queue: a\n", "", JOB + "  branches: [{name: a}]\n", "# nothing\n"])
    assert [found.key_name for found in load_manifests(text, source="x")] == ["task", "job"]
    wrong = "---\n".join([TASK + "  queue: a\n", JOB + "  branches: []\n"])
    assert refusal(wrong).startswith("job.yaml (document 2): spec.branches: expected")


def test_all_that_is_wrong_is_told_at_once_up_to_ten() -> None:
    told = refusal(JOB + "  branches: [" + ", ".join(["{name: 1}"] * 15) + "]\n").splitlines()
    assert len(told) == 11
    assert told[9].startswith("job.yaml: spec.branches[9].name:")
    assert told[10] == "and 5 more"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "job.yaml: there is no manifest in it"),
        ("---\n---\n", "job.yaml: there is no manifest in it"),
        ("just text", "expected a LeasedTask or FanOutJob, got 'just text'"),
        ("[1, 2]", "expected a LeasedTask or FanOutJob, got [1, 2]"),
        ("kind: Deployment", "kind: 'Deployment' is none of LeasedTask, FanOutJob"),
        ("kind: fanoutjob", "kind: 'fanoutjob' is none of LeasedTask, FanOutJob"),
        ("kind: [1]", "kind: [1] is none of"),
        ("kynd: FanOutJob", "kind: missing; did you mean kind where kynd stands?"),
        ("apiVersion: v1", "kind: missing; expected LeasedTask or FanOutJob"),
        (
            JOB.replace("v1alpha1", "v1") + "  branches: [{name: a}]",
            "apiVersion: expected fencepost.dev/v1alpha1",
        ),
        (
            in_json(queue="a").replace('"name": "leasedtask"', '"namespace": "x"'),
            "metadata.name: missing; give",
        ),
        (
            in_json(queue="a").replace('"leasedtask"', '"a_b"'),
            "metadata.name: 'a_b' is no object name: 1 to 253",
        ),
        (in_json(queue="a").replace('"leasedtask"', f'"{"a" * 254}"'), "is no object name"),
        (
            in_json(queue="a").replace('"name": ', '"namespace": "X", "name": '),
            "metadata.namespace: 'X' is no DNS",
        ),
    ],
    ids=range(14),
)
def test_what_is_no_manifest_says_so(text: str, sentence: str) -> None:
    assert sentence in refusal(text)


# Numbers, duplicates and depth (RFC 8785 cannot keep them, or a reader would change them without a word).

REQUEST = (
    '{"apiVersion": "fencepost.dev/v1alpha1", "kind": "LeasedTask", "metadata": {"name": "t"}, '
    '"spec": {"request": %s}}'
)


@pytest.mark.parametrize(
    ("request_text", "sentence"),
    [
        ('{"n": 9007199254740993}', "spec.request: not representable as canonical JSON"),
        ('{"n": NaN}', "NaN is no JSON number"),
        ('{"n": -Infinity}', "-Infinity is no JSON number"),
        ('{"n": 1e400}', "spec.request: not representable as canonical JSON"),
        ('{"n": 1e20}', "100000000000000000000"),
        ('{"a": 1, "a": 2}', "the key 'a' stands twice in one object"),
        (f'{{"n": {"9" * 5000}}}', "a number has more digits than any JSON reader keeps"),
        (f'{{"a": {"[" * 100_000}1{"]" * 100_000}}}', "nested too deeply to be read"),
        (f'{{"a": {"[" * 65}1{"]" * 65}}}', "spec.request: nested deeper than 64 levels"),
        ('{"a": "\\ud800"}', "has a lone surrogate, which UTF-8 has no bytes for"),
    ],
    ids=lambda value: value[:24],
)
def test_json_that_cannot_be_kept_exactly_is_refused(request_text: str, sentence: str) -> None:
    assert sentence in refusal(REQUEST % request_text)


LAUGHS = (
    "{"
    + ", ".join(["a: &a [x]", *(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in pairwise("abcdefgh"))])
    + "}"
)


@pytest.mark.parametrize(
    ("request_text", "sentence"),
    [
        ("{x: .nan}", ".nan is no JSON number"),
        ("{x: -.INF}", "-.inf is no JSON number"),
        ("{x: 1, x: 2}", "the key 'x' stands twice"),
        ("{<<: {x: 1}, x: 2, x: 3}", "the key 'x' stands twice"),
        ("{5: 1}", "the key 5 is no text in YAML: quote it"),
        ("{[1]: 1}", "the key that is a list or an object is no text"),
        (f"{{x: {'9' * 5000}}}", "a number has more digits than any JSON reader keeps"),
        (f"{{x: {'[' * 100_000}}}", "nesting"),
        ("!!python/object:os.system {}", "could not determine a constructor"),
        ("{x: !!binary aGVsbG8=}", "spec.request"),
        ("&a {x: *a}", "it stands for more than"),
        (LAUGHS, "it stands for more than"),
    ],
    ids=lambda value: value[:24],
)
def test_yaml_that_cannot_be_kept_exactly_is_refused(request_text: str, sentence: str) -> None:
    assert sentence in refusal(f"{TASK}  request: {request_text}\n")


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("-0.0", "0"),
        ("1.0", "1"),
        ("1e3", "1000"),
        ("4.50", "4.5"),
        ("0o17", "15"),
        ("017", "15"),
        ("-0x1F", "-31"),
        ("0b101", "5"),
        ("1_000", "1000"),
        ("~", "null"),
        ("", "null"),
        ("yes", "true"),
        ("Off", "false"),
        ("1:30", '"1:30"'),
        ("2020-01-01", '"2020-01-01"'),
        ("1.2.3", '"1.2.3"'),
        ("=", '"="'),
        ("'1'", '"1"'),
        ("9007199254740991", "9007199254740991"),
    ],
)
def test_unquoted_scalars_mean_what_they_mean_to_kubectl(written: str, kept: str) -> None:
    (found,) = load_manifests(f"{TASK}  request: {{x: {written}}}\n", source="x")
    assert isinstance(found, TaskManifest)
    assert found.spec.request == f'{{"x":{kept}}}'


def test_merge_keys_are_merged() -> None:
    text = f"{TASK}  request:\n    base: &b {{x: 1, z: 1}}\n    more: {{<<: *b, z: 2}}\n"
    (found,) = load_manifests(text, source="x")
    assert isinstance(found, TaskManifest)
    assert json.loads(found.spec.request)["more"] == {"x": 1, "z": 2}


# Sizes.


def job_of_size(size: int) -> str:
    """A FanOutJob whose spec takes exactly that many bytes where it is stored."""
    piece = 60_000
    branches = [{"name": f"b{n}", "request": {"t": "x" * piece}} for n in range(size // (piece + 50))]
    fill = size - len(json.dumps({"branches": branches}, separators=(",", ":")))
    branches.append({"name": "z", "request": {"t": ""}})
    over = len(json.dumps({"branches": branches}, separators=(",", ":"))) - (size - fill)
    branches[-1] = {"name": "z", "request": {"t": "x" * (fill - over)}}
    return in_json("FanOutJob", branches=branches)


@pytest.mark.parametrize(
    ("size", "server_side"),
    [
        (limits.JOB_SPEC_BYTES_MAX_CLIENT_SIDE, False),
        (limits.JOB_SPEC_BYTES_MAX_CLIENT_SIDE + 1, True),
        (limits.JOB_SPEC_BYTES_MAX, True),
    ],
)
def test_a_spec_over_200_kib_needs_server_side_apply(size: int, server_side: bool) -> None:
    (found,) = load_manifests(job_of_size(size), source="x")
    assert isinstance(found, JobManifest)
    assert found.needs_server_side is server_side


def test_a_spec_over_320_kib_is_refused() -> None:
    told = refusal(job_of_size(limits.JOB_SPEC_BYTES_MAX + 1))
    assert told == f"job.yaml: spec: it takes {320 * 1024 + 1} bytes, over the limit of {320 * 1024}"


def test_a_request_at_the_limit_of_depth_is_taken_in_a_job_too() -> None:
    deep = json.loads('{"a":' * (limits.REQUEST_DEPTH_MAX - 1) + "1" + "}" * (limits.REQUEST_DEPTH_MAX - 1))
    (found,) = load_manifests(in_json("FanOutJob", branches=[{"name": "a", "request": deep}]), source="x")
    assert isinstance(found, JobManifest)
    assert json.loads(found.spec.branches[0].request) == deep


def test_signs_that_are_stored_as_six_bytes_count_as_six() -> None:
    branches = [{"name": f"b{n}", "request": {"t": "<" * 9000}} for n in range(10)]
    assert "over the limit of 327680" in refusal(in_json("FanOutJob", branches=branches))


def told(text: str) -> str:
    """What is said of the text, as it would be printed."""
    try:
        load_manifests(text, source="x")
    except ManifestUnreadable as refused:
        return str(refused).encode().decode()
    return "x: taken"


@given(st.text(max_size=60))
def test_no_text_gives_a_traceback(text: str) -> None:
    assert told(text).startswith("x")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    )
)
def test_no_value_in_the_place_of_a_spec_gives_a_traceback(value: object) -> None:
    for kind in ("LeasedTask", "FanOutJob"):
        for spec in (value, {"branches": value}, {"branches": [{"name": "a"}], "continuation": value}):
            whole = {"apiVersion": "fencepost.dev/v1alpha1", "kind": kind, "metadata": value, "spec": spec}
            assert told(json.dumps(whole)).startswith("x: ")
