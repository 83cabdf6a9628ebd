"""Wrong input: one clear sentence, the documented exit code, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Fencepost

USAGE = 2


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["wrker"], USAGE, "there is no command 'wrker' (did you mean worker?); try 'fencepost --help'"),
        (["worker"], USAGE, "missing argument 'APP'; try 'fencepost worker --help'"),
        (["get", "taks"], USAGE, "no such command 'taks'"),
        (["get", "tasks", "--what"], USAGE, "no such option '--what'; try 'fencepost get tasks --help'"),
        (["worker", "nothing"], 61, "'nothing' is no worker: write module:variable"),
        (["worker", "nowhere:worker"], 61, "there is no module nowhere in "),
        (["worker", "os:path"], 61, "not a fencepost Worker"),
        (["worker", "os:SEEK_SET"], 61, "os:SEEK_SET is an int, not a fencepost Worker"),
        (["worker", "feeds.py:worker"], 61, "without .py, write feeds:worker"),
        (["worker", "./feeds.py:worker"], 61, "without .py, write feeds:worker"),
        (["worker", "examples/feeds:worker"], 61, "without .py, write examples.feeds:worker"),
        (["worker", "APP", "--queue", "other"], 61, "the worker has no queue other; it has feeds"),
        (["worker", "APP", "--grace-seconds", "-1"], USAGE, "--grace-seconds"),
        (["worker", "APP", "--outbox", "no/such/folder/o.db", "--once"], 72, "no/such/folder"),
        (["enqueue", "feeds"], USAGE, "give the request as an argument or with --file"),
        (["enqueue", "feeds", "{"], USAGE, "the request is no JSON: Expecting property name"),
        (["enqueue", "feeds", "[1]"], USAGE, "a request is a JSON object, got list"),
        (["enqueue", "feeds", '{"a": 1, "a": 2}'], USAGE, "the member 'a' is there twice"),
        (["enqueue", "feeds", '{"a": NaN}'], USAGE, "NaN is no JSON"),
        (["enqueue", "feeds", '{"a": 1e400}'], USAGE, "1e400 is too large for a number"),
        (["enqueue", "feeds", '{"a": 9007199254740993}'], USAGE, "RFC 8785"),
        (["enqueue", "feeds", '{"a": ' + "1" * 5000 + "}"], USAGE, "a number is too long"),
        (["enqueue", "feeds", "[" * 100_000], USAGE, "nested too deeply"),
        (["enqueue", "feeds", '{"a": "\\ud800"}'], USAGE, "non-UTF-8 codepoints"),
        (["enqueue", "feeds", '{"a": "' + "x" * 70_000 + '"}'], USAGE, "over the limit of 65536"),
        (["enqueue", "q" * 64, "{}"], USAGE, "1 to 63 characters"),
        (["enqueue", "feeds", "{}", "--priority", "10"], USAGE, "--priority"),
        (["enqueue", "feeds", "--file", "missing.json"], USAGE, "missing.json"),
        (["claim", "feeds", "--store", "missing.db"], USAGE, "there is no store missing.db"),
        (["claim", "feeds", "--holder", "me"], USAGE, "is no holder"),
        (["submit", "missing.json", "x"], USAGE, "missing.json"),
        (["submit", "APPFILE", "x"], USAGE, "a lease is the JSON that `fencepost claim` prints"),
        (["outbox", "ls", "--outbox", "missing.db"], USAGE, "there is no outbox missing.db"),
        (["audit", "--outbox", "missing.db"], USAGE, "there is no outbox missing.db"),
        (["tree", "nothing"], USAGE, "there is no job default/nothing"),
        (["get", "tasks", "--context", "x"], USAGE, "--store is instead of a cluster"),
        (["run", "missing.yaml", "--app", "APP"], USAGE, "missing.yaml"),
        (["run", "APPFILE", "--app", "nowhere:worker"], 61, "there is no module nowhere"),
    ],
)
def test_one_sentence_and_a_code(
    fencepost: Fencepost, tmp_path: Path, arguments: list[str], code: int, sentence: str
) -> None:
    fencepost("enqueue", "first", "{}")  # so that the store is there
    module = next(tmp_path.glob("app_*.py")).name
    said = fencepost(*(module if argument == "APPFILE" else argument for argument in arguments))
    assert (said.code, sentence in said.err) == (code, True), said.err
    assert said.err.startswith("fencepost: ")
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("import nothing_of_this_name", "needs nothing_of_this_name, which is not installed"),
        ("worker = 1 +", "has an error in "),
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero ("),
        ("raise SystemExit('no')", "cannot be imported: SystemExit: no"),
        (
            "from fencepost import Worker\nworker = Worker(queue='q')\n@worker.task\ndef h(a, b): ...",
            "cannot be used: the handler h takes a, b",
        ),
        ("from fencepost import Worker\nworker = Worker(queue='q')", "no handler for the queue q"),
        ("from fencepost import Worker\nw = Worker(queue='q')", "has no worker; it has the worker w"),
    ],
)
def test_a_module_that_cannot_be_used_is_named_with_the_reason(
    fencepost: Fencepost, tmp_path: Path, content: str, sentence: str
) -> None:
    name = f"broken_{abs(hash((tmp_path, content)))}"
    (tmp_path / f"{name}.py").write_text(content)
    said = fencepost("worker", f"{name}:worker", "--once")
    assert (said.code, sentence in said.err) == (61, True), said.err


@pytest.mark.parametrize(
    ("lease", "sentence"),
    [
        ("[]", "a lease is a JSON object"),
        ("{}", "the lease has no namespace"),
        ('{"namespace":"a","name":"b","uid":"c","token":"1","holder":"d"}', "the lease's token is '1'"),
        ('{"namespace":"a","name":"b","uid":"c","token":1,"holder":"d"}', "'d' is no holder"),
    ],
)
def test_a_lease_that_is_none(fencepost: Fencepost, tmp_path: Path, lease: str, sentence: str) -> None:
    (tmp_path / "lease.json").write_text(lease)
    said = fencepost("heartbeat", "lease.json")
    assert (said.code, sentence in said.err) == (USAGE, True), said.err


def test_values_that_contradict_themselves(fencepost: Fencepost, tmp_path: Path) -> None:
    fencepost("enqueue", "feeds", "{}")
    (tmp_path / "lease.json").write_text(fencepost("claim", "feeds").out)
    assert "has no value" in fencepost("submit", "lease.json", "x", "--outcome", "Unknown").err
    assert (
        "a row has the outcome Ok"
        in fencepost("submit", "lease.json", "x", "--row", "--outcome", "Rejected").err
    )
    assert "give the value" in fencepost("submit", "lease.json").err
    assert "no control characters" in fencepost("submit", "lease.json", "x", "--key", "a\nb").err
    large = fencepost("submit", "lease.json", "x" * 20_000)
    assert (large.code, large.out) == (16, "UNACCEPTABLE\n")
    assert "over the limit of 16384" in large.err


def test_no_cluster_is_one_sentence(
    fencepost: Fencepost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FENCEPOST_STORE")
    monkeypatch.setenv("HOME", str(tmp_path))
    said = fencepost("get", "tasks")
    assert (said.code, len(said.err.strip().splitlines())) == (64, 1), said.err
    said = fencepost("get", "tasks", "--kubeconfig", "missing")
    assert (said.code, "the kubeconfig missing does not exist" in said.err) == (64, True), said.err


@pytest.mark.slow
def test_as_a_process_it_starts_light_and_takes_the_name_it_is_called_by() -> None:
    folder = Path(sys.executable).parent
    said = subprocess.run([folder / "fencepost", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("fencepost ")
    plugin = subprocess.run(
        [folder / "kubectl-fencepost", "--help"], capture_output=True, text=True, check=True
    )
    assert plugin.stdout.startswith("Usage: kubectl fencepost ")
    heavy = "import sys, fencepost, fencepost.cli.main; from fencepost import Worker, Lease;"
    heavy += "heavy = {'aiohttp', 'kubernetes', 'pydantic', 'kopf', 'yaml', 'rich'} & set(sys.modules);"
    heavy += "print(sorted(heavy))"
    loaded = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"


@pytest.mark.parametrize(
    "command",
    [
        *("run", "worker", "enqueue", "get tasks", "get jobs", "tree", "audit"),
        *("outbox ls", "outbox drain", "outbox dead", "outbox prune"),
        *("claim", "heartbeat", "release", "submit"),
    ],
)
def test_every_command_has_help(fencepost: Fencepost, command: str) -> None:
    said = fencepost(*command.split(), "--help")
    assert said.code == 0
    assert f"fencepost {command}" in said.out.partition("Example")[2]
    assert "Exit codes: 0 " in " ".join(said.out.split())


@pytest.mark.parametrize(
    "command", ["outbox ls", "outbox dead", "outbox drain", "outbox prune", "audit", "worker APP --once"]
)
def test_a_file_that_never_was_an_outbox_is_left_alone(
    fencepost: Fencepost, tmp_path: Path, command: str
) -> None:
    fencepost("enqueue", "feeds", "{}")
    (tmp_path / "notes.txt").write_text("my notes\n")
    before = {file.name for file in tmp_path.iterdir()}
    said = fencepost(*command.split(), "--outbox", "notes.txt")
    assert (said.code, "notes.txt is no outbox" in said.err) == (74, True), said.err
    assert (tmp_path / "notes.txt").read_text() == "my notes\n"
    assert {file.name for file in tmp_path.iterdir()} - before <= {"__pycache__"}


def test_a_damaged_outbox_is_moved_by_its_worker_and_not_by_who_looks(
    fencepost: Fencepost, tmp_path: Path
) -> None:
    fencepost("enqueue", "feeds", '{"n": 1}')
    assert fencepost("worker", "APP", "--once").code == 0
    outbox = tmp_path / "fencepost-outbox.db"
    outbox.write_bytes(b"garbage " * 1000)
    for command in ("outbox ls", "outbox dead", "audit"):
        said = fencepost(*command.split())
        assert (said.code, "was left where it is" in said.err) == (74, True), said.err
        assert outbox.read_bytes() == b"garbage " * 1000
    said = fencepost("worker", "APP", "--once")
    assert (said.code, "fencepost-outbox.db.damaged-1" in said.err) == (74, True), said.err
    assert not outbox.exists()


def test_a_folder_that_cannot_take_a_store_is_named(fencepost: Fencepost, tmp_path: Path) -> None:
    (tmp_path / "taken.db.lock").mkdir()
    said = fencepost("enqueue", "feeds", "{}", "--store", "taken.db")
    message = f"the store taken.db cannot be used: its lock file cannot be made or opened in {tmp_path}"
    assert message in said.err
