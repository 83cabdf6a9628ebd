"""Each command on the embedded store: what it does, prints, and ends with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Fencepost


def test_enqueue_work_and_look(fencepost: Fencepost) -> None:
    assert fencepost("enqueue", "feeds", '{"n": 1}', "--name", "a").out == "ACCEPTED default/a\n"
    assert fencepost("worker", "APP", "--once").code == 0
    said = fencepost("get", "tasks")
    assert said.out.splitlines()[0].split()[:3] == ["NAME", "QUEUE", "STATE"]
    assert said.out.splitlines()[1].split()[:3] == ["a", "feeds", "Succeeded"]
    (task,) = fencepost("get", "tasks", "-o", "json").json["items"]
    assert task["status"]["receipts"][0]["value"] == '{"twice":2}'


def test_enqueue_again_is_a_replay_other_content_a_conflict(fencepost: Fencepost) -> None:
    assert fencepost("enqueue", "feeds", '{"n": 1, "m": 2}').code == 0
    again = fencepost("enqueue", "feeds", '{"m": 2.0, "n": 1e0}', "-o", "json")
    assert (again.code, again.json["verdict"]) == (0, "DUPLICATE")
    fencepost("enqueue", "feeds", '{"n": 1}', "--name", "a")
    said = fencepost("enqueue", "feeds", '{"n": 2}', "--name", "a")
    assert (said.code, said.out) == (10, "CONFLICT default/a\n")
    assert "the name default/a is taken by a task with other content" in said.err


def test_enqueue_takes_everything_a_task_has(fencepost: Fencepost, tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text('{"n": 3}')
    options = ["--priority", "9", "--lease-seconds", "30", "--max-failures", "2", "--ttl-seconds", "60"]
    options += ["--deadline-seconds", "90", "--unknown-policy", "Reclaim"]
    said = fencepost("enqueue", "feeds", "--file", "request.json", *options, "-o", "json")
    spec = said.json["task"]["spec"]
    assert (spec["priority"], spec["leaseDurationSeconds"], spec["unknownPolicy"]) == (9, 30, "Reclaim")
    assert (spec["retryPolicy"]["maxFailures"], spec["request"]) == (2, {"n": 3})


def test_a_script_claims_renews_and_submits(fencepost: Fencepost, tmp_path: Path) -> None:
    fencepost("enqueue", "feeds", '{"n": 1}', "--name", "a")
    claimed = fencepost("claim", "feeds")
    assert (claimed.code, claimed.json["request"], claimed.json["token"]) == (0, {"n": 1}, 1)
    (tmp_path / "lease.json").write_text(claimed.out)
    assert fencepost("claim", "feeds").code == 3
    assert fencepost("heartbeat", "lease.json", "--progress", "half").code == 0
    assert fencepost("submit", "lease.json", "a row", "--row", "--key", "row-1").out == "ACCEPTED\n"
    said = fencepost("submit", "lease.json", '{"done": true}', "-o", "json")
    assert (said.code, said.json["verdict"], said.json["receipt"]["sequence"]) == (0, "ACCEPTED", 2)
    again = fencepost("submit", "lease.json", '{"done": true}', "-o", "json")
    assert (again.code, again.json["verdict"]) == (0, "DUPLICATE")
    assert again.json["receipt"] == said.json["receipt"]
    other = fencepost("submit", "lease.json", "something else")
    assert (other.code, other.out) == (14, "TERMINAL_CONFLICT\n")
    conflict = fencepost("submit", "lease.json", "another row", "--row", "--key", "row-1")
    assert (conflict.code, conflict.out) == (10, "CONFLICT\n")
    assert fencepost("heartbeat", "lease.json").code == 4
    assert fencepost("release", "lease.json").code == 4


def test_a_lease_that_was_released_is_over_for_its_submits(fencepost: Fencepost, tmp_path: Path) -> None:
    fencepost("enqueue", "feeds", '{"n": 1}', "--name", "a")
    (tmp_path / "lease.json").write_text(fencepost("claim", "feeds").out)
    assert fencepost("release", "lease.json").code == 0
    assert fencepost("claim", "feeds").json["token"] == 2
    said = fencepost("submit", "lease.json", "late")
    assert (said.code, said.out) == (11, "REJECTED_STALE_TOKEN\n")
    assert "token 1 is over: the current token is 2" in said.err


def test_a_script_that_failed_says_why(fencepost: Fencepost, tmp_path: Path) -> None:
    fencepost("enqueue", "feeds", '{"n": 1}', "--name", "a")
    (tmp_path / "lease.json").write_text(fencepost("claim", "feeds").out)
    assert fencepost("release", "lease.json", "--error", "503").code == 0
    (task,) = fencepost("get", "tasks", "-o", "json").json["items"]
    assert task["metadata"]["labels"]["fencepost.dev/hold"] == "Backoff"
    assert task["metadata"]["annotations"]["fencepost.dev/last-lease"].endswith("error 503")


def test_unknown_is_released_and_waits(fencepost: Fencepost, tmp_path: Path) -> None:
    fencepost("enqueue", "feeds", '{"n": 1}', "--name", "a")
    (tmp_path / "lease.json").write_text(fencepost("claim", "feeds").out)
    assert fencepost("submit", "lease.json", "--outcome", "Unknown").out == "ACCEPTED\n"
    (task,) = fencepost("get", "tasks", "-o", "json").json["items"]
    assert (task["status"]["state"], task["metadata"]["labels"]["fencepost.dev/hold"]) == (
        "Unknown",
        "Unknown",
    )


def test_the_outbox_is_looked_into_drained_audited_and_pruned(fencepost: Fencepost) -> None:
    for number in (1, 2):
        fencepost("enqueue", "feeds", f'{{"n": {number}}}')
    fencepost("worker", "APP", "--once")
    assert fencepost("outbox", "ls").out == "Nothing is waiting in the outbox.\n"
    assert [row["status"] for row in fencepost("outbox", "ls", "--all", "-o", "json").json] == [
        "acknowledged",
        "acknowledged",
    ]
    assert fencepost("outbox", "dead").out == "There are no dead letters.\n"
    assert fencepost("outbox", "drain").out == "nothing to drain\n"
    audit = fencepost("audit", "-o", "json")
    assert (audit.code, audit.json["ok"], audit.json["compared"]) == (0, True, 2)
    assert "No fault was found." in fencepost("audit").out
    assert fencepost("outbox", "prune", "--older-than-days", "0").out == "2 rows removed\n"
    assert fencepost("outbox", "prune").out == "0 rows removed\n"
    assert fencepost("outbox", "ls", "--all").out == "no rows\n"


def test_an_audit_of_an_older_copy_of_the_outbox_finds_what_it_lost(
    fencepost: Fencepost, tmp_path: Path
) -> None:
    outbox = tmp_path / "fencepost-outbox.db"
    fencepost("enqueue", "feeds", '{"n": 1}')
    fencepost("worker", "APP", "--once")
    older = outbox.read_bytes()
    fencepost("enqueue", "feeds", '{"n": 2}')
    fencepost("worker", "APP", "--once")
    outbox.write_bytes(older)
    said = fencepost("audit", "-o", "json")
    assert (said.code, said.json["ok"]) == (1, False)
    assert "ROW_MISSING" in {finding["kind"] for finding in said.json["findings"]}
    assert "There are faults." in fencepost("audit").out


@pytest.mark.slow
def test_a_job_is_run_and_shown(fencepost: Fencepost, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "apiVersion: fencepost.dev/v1alpha1\nkind: FanOutJob\nmetadata: {name: demo}\nspec:\n"
        "  template: {spec: {queue: feeds}}\n  branches:\n"
        '    - {name: north, request: {"n": 1}}\n    - {name: south, request: {reject: true}}\n'
    )
    assert fencepost("run", "job.yaml", "--app", "APP", "--store", "s.db", "--workers", "1").code == 1
    tree = fencepost("tree", "demo")
    assert "2/2 branches settled: 1 ok, 1 rejected" in tree.out
    assert [line.split()[1] for line in tree.out.splitlines()[3:]] == ["north", "south"]
    assert set(fencepost("tree", "demo", "-o", "json").json["branches"]) == {"north", "south"}
    assert "demo" in fencepost("get", "jobs").out
    (job,) = fencepost("get", "jobs", "-o", "json").json["items"]
    assert job["status"]["state"] == "Failed"


JOB = """
apiVersion: fencepost.dev/v1alpha1
kind: FanOutJob
metadata: {name: demo}
spec:
  template: {spec: {queue: feeds, retryPolicy: {maxFailures: 0}}}
  branches:
    - {name: fails, request: {fail: true}}
    - {name: large, request: {large: true}}
    - {name: vague, request: {vague: true}}
  continuation:
    when: Settled
    template: {apiVersion: fencepost.dev/v1alpha1, kind: LeasedTask, spec: {queue: feeds, request: {"n": 4}}}
"""


def shown(tree: str) -> dict[str, list[str]]:
    """The lines below the headings: branch -> state, token and value."""
    lines = [line for line in tree.splitlines() if line[:1] in "├└"]
    rows = [[cell.strip() for cell in line.split("   ") if cell.strip()] for line in lines]
    return {cells[0][3:]: cells[2:] for cells in rows}


@pytest.mark.slow
def test_a_tree_says_why_a_branch_failed_where_a_value_is_and_what_is_waited_for(
    fencepost: Fencepost, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    assert fencepost("run", "job.yaml", "--app", "APP", "--store", "s.db", "--workers", "1").code == 20
    assert shown(fencepost("tree", "demo").out)["vague"] == ["Unknown", "1", "waits for a report"]

    vague, plain = "{name: vague, request: {vague: true}}", '{name: plain, request: {"n": 2}}'
    (tmp_path / "settled.yaml").write_text(JOB.replace("demo", "settled").replace(vague, plain))
    fencepost("run", "settled.yaml", "--app", "APP", "--store", "s.db", "--workers", "1")
    settled = shown(fencepost("tree", "settled").out)
    assert settled["fails"][:2] == ["Rejected (FailuresExhausted)", "1"]
    assert settled["fails"][2] == "last error: ConnectionError: the feed answered 503"
    assert settled["large"][2].startswith("by reference: settled-large-")
    assert settled["then (LeasedTask)"] == ["Succeeded", "1", '{"twice":8}']
