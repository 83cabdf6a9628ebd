"""kubectl as a function, and the kubeconfig it is given.

Nothing here ever reads the user's own kubeconfig: the file is always named, and `KUBECONFIG` is overridden.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

from tests.cluster.kube_api import Json

KUBECTL_SECONDS_MAX = 120.0


class KubectlError(AssertionError):
    """kubectl ended with an error; the message holds the command and what kubectl said."""


def run_kubectl(
    kubectl: Path, kubeconfig: Path, *arguments: str, input: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs `kubectl ARGUMENTS` with that kubeconfig. With `check`, a failure raises `KubectlError`."""
    done = subprocess.run(
        [str(kubectl), *arguments],
        input=input,
        stdin=subprocess.DEVNULL if input is None else None,
        capture_output=True,
        text=True,
        check=False,
        timeout=KUBECTL_SECONDS_MAX,
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
    )
    if check and done.returncode != 0:
        raise KubectlError(
            f"kubectl {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}"
        )
    return done


def kubeconfig_content(
    *, server: str, authorities_pem: str, token: str, name: str = "fencepost", namespace: str = "default"
) -> Json:
    """A kubeconfig with one context of that name, everything inlined."""
    authorities = base64.b64encode(authorities_pem.encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": server, "certificate-authority-data": authorities}}
        ],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
        "current-context": name,
    }


def write_kubeconfig(path: Path, content: Json) -> Path:
    """Writes it readable for its owner only (it holds a token); JSON, which is YAML too. Returns `path`."""
    path.touch(mode=0o600)
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path
