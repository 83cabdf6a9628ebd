"""The document of the wire protocol is right: its own commands are run against the real API server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable

import pytest

from fencepost.kube.connection import explicit
from fencepost.kube.store import KubeStore
from fencepost.protocol.receipt import verify_chain
from fencepost.protocol.task import Hold, Kind, ObjectKey, Outcome, State
from fencepost.worker.enqueue import enqueue_async
from tests.cluster.cluster import Cluster
from tests.conftest import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "wire-protocol.md"
SCRIPT = """
test "$(claimable feeds | sort | tr '\\n' ' ')" = 'done failed unknown '
claim done | heartbeat | submit Row Ok 'a <row> & "more"' > "$FOLDER/row.json"
submit Result Ok '{"rows":1}' < "$FOLDER/row.json" > "$FOLDER/done.json"
claim failed | release error 'the feed answered 503' > /dev/null
claim unknown | submit Result Unknown '' | release after-unknown > /dev/null
test -z "$(claimable feeds)"
if submit Result Ok late < "$FOLDER/done.json" > "$FOLDER/late.json" 2> /dev/null; then exit 1; fi
"""


async def test_the_commands_of_the_document_work(
    cluster: Cluster,
    namespace: str,
    service_account: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    missing = [program for program in ("bash", "curl", "jq") if not shutil.which(program)]
    if missing:
        pytest.skip(f"the document's commands need {', '.join(missing)}")
    admin = KubeStore.of(
        explicit(cluster.server, ca_file=cluster.ca_file, token=cluster.admin_token, namespace=namespace)
    )
    for name in ("done", "failed", "unknown"):
        await enqueue_async("feeds", {"n": 1}, name=name, store=admin)
    blocks = re.findall(r"^```bash\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    environment = os.environ | {
        "SERVER": cluster.server,
        "CA": str(cluster.ca_file),
        "TOKEN": service_account("worker"),
        "NAMESPACE": namespace,
        "FOLDER": str(tmp_path_factory.mktemp("wire")),
    }
    said = subprocess.run(  # noqa: ASYNC221 - nothing else runs here
        ["bash", "-c", "".join(blocks) + SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    done, failed, unknown = [
        await admin.task(ObjectKey(namespace=namespace, name=name)) for name in ("done", "failed", "unknown")
    ]
    assert done and failed and unknown
    verify_chain(done)
    verify_chain(unknown)
    assert [(r.kind, r.value) for r in done.receipts] == [
        (Kind.ROW, 'a <row> & "more"'),
        (Kind.RESULT, '{"rows":1}'),
    ]
    assert (done.state, done.token, done.renewals) == (State.SUCCEEDED, 1, 1)
    assert (failed.hold, failed.failures) == (Hold.BACKOFF, 1)
    assert failed.last_lease and failed.last_lease.message == "the feed answered 503"
    assert (unknown.state, unknown.hold, unknown.failures) == (State.UNKNOWN, Hold.UNKNOWN, 0)
    assert unknown.receipts[0].outcome is Outcome.UNKNOWN
    await admin.close()
