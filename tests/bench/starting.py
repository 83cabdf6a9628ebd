"""How soon a worker works: from the start of its process to its first claim at the API server.

Measured as a user starts it (`fencepost worker`, by a kubeconfig) and as a pod does (its ServiceAccount's
files; no kubeconfig, so the `kubernetes` package is never loaded). Beside it, what importing costs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench.measured import Measured, Target, say
from tests.bench.stage import Stage, arrived

REPOSITORY = Path(__file__).parents[2]
SECONDS_MAX = 1.5
AS_A_POD = """
import sys
from pathlib import Path
from fencepost.kube import connection
connection.SERVICE_ACCOUNT = Path(sys.argv[1])
connection.of_pod.__defaults__ = (connection.SERVICE_ACCOUNT,)
sys.argv[1:] = sys.argv[2:]
from fencepost.cli.main import main
main()
"""


def measure(stage: Stage, *, quick: bool) -> list[Measured]:
    """Some starts of each sort; the operator is not needed for it."""
    rounds = 1 if quick else 5
    by_kubeconfig = [_start(stage, as_a_pod=False) for _ in range(rounds)]
    say(f"start by kubeconfig: {', '.join(f'{s:.2f}' for s in by_kubeconfig)} s")
    as_a_pod = [_start(stage, as_a_pod=True) for _ in range(rounds)]
    say(f"start as a pod: {', '.join(f'{s:.2f}' for s in as_a_pod)} s")
    target = Target(sign="<=", limit=SECONDS_MAX)
    return [
        Measured(name="worker's start to first claim, as a pod", unit="s", values=as_a_pod, target=target),
        Measured(
            name="worker's start to first claim, by kubeconfig", unit="s", values=by_kubeconfig, target=target
        ),
        *(
            Measured(name=f"python -c '{what}'", unit="s", values=[_run(what) for _ in range(rounds)])
            for what in ("pass", "import fencepost", "from fencepost import Worker", "import kubernetes")
        ),
    ]


def _start(stage: Stage, *, as_a_pod: bool) -> float:
    """Seconds from the start of the process to the arrival of its claim."""
    namespace = stage.namespace("start")
    token = stage.worker_token(namespace)
    stage.make_task(namespace, "first")
    options = ["tests.bench.trivial:worker", "--once", "--outbox", str(stage.folder / f"{namespace}.db")]
    environment = dict(os.environ)
    if as_a_pod:
        folder = _service_account_files(stage, namespace, token)
        command = [sys.executable, "-c", AS_A_POD, str(folder), "worker", *options]
        environment |= _pod_environment(stage.cluster.server)
    else:
        kubeconfig = stage.cluster.kubeconfig_for(token, namespace=namespace)
        command = [sys.executable, "-m", "fencepost.cli.main", "worker", *options]
        command += ["--kubeconfig", str(kubeconfig), "--namespace", namespace]
    began = time.time()
    answer = subprocess.run(
        command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if answer.returncode:
        raise RuntimeError(f"the worker ended with {answer.returncode}: {answer.stderr[-2000:]}")
    writes = [event for event in stage.requests(namespace) if event["verb"] == "patch"]
    return arrived(writes[0]) - began


def _service_account_files(stage: Stage, namespace: str, token: str) -> Path:
    folder = stage.folder / f"{namespace}-account"
    folder.mkdir()
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_text(stage.cluster.ca_file.read_text())
    (folder / "namespace").write_text(namespace)
    return folder


def _pod_environment(server: str) -> Mapping[str, str]:
    address = urlsplit(server)
    return {
        "KUBERNETES_SERVICE_HOST": str(address.hostname),
        "KUBERNETES_SERVICE_PORT": str(address.port),
        "KUBECONFIG": "",
    }


def _run(statement: str) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", statement], check=True, cwd=REPOSITORY)
    return time.monotonic() - began
