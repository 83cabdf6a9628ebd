"""The few plain HTTPS calls that tests make to an API server, without a client library in between.

What a test asserts is then what the server answered, not what a client made of it. Answers come back as
status and parsed JSON; a refusal is an answer and raises nothing. Reading a kubeconfig is left to kubectl,
which knows all of its forms; only credentials that are written in it (token, client certificate) are
supported here.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fencepost.kube.parsing import parsed

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

Json = Any
"""What `json.loads` gives. Tests look into it freely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the server said: the HTTP status, and the body as JSON (as text where it is none)."""

    status: int
    body: Json

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        """The sentence of a Kubernetes Status, empty where the body is no Status."""
        return str(self.body.get("message", "")) if isinstance(self.body, dict) else str(self.body)


class KubeApi:
    """One identity at one API server. Each call opens its own connection, so any thread may use it."""

    def __init__(self, *, server: str, authorities_pem: str, token: str | None = None) -> None:
        self.server = server
        self.authorities_pem = authorities_pem
        self._token = token
        self._tls = ssl.create_default_context(cadata=authorities_pem)

    def acting_with(self, token: str) -> KubeApi:
        """The same server as somebody else."""
        return KubeApi(server=self.server, authorities_pem=self.authorities_pem, token=token)

    def present_client_certificate(self, *, certificate_pem: str, key_pem: str) -> None:
        """From now on this identity is the one of the certificate."""
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:  # the ssl module takes files only
            both.write(f"{certificate_pem}\n{key_pem}\n")
            both.flush()
            self._tls.load_cert_chain(both.name)

    def request(
        self,
        method: str,
        path: str,
        body: Json = None,
        *,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
        timeout_seconds: float = 40.0,
    ) -> Answer:
        """One request; `path` begins with a slash.

        Raises `OSError` or `http.client.HTTPException` where no answer came: the fate is then unknown.
        """
        address = urlsplit(self.server)
        connection = http.client.HTTPSConnection(
            str(address.hostname), address.port or 443, context=self._tls, timeout=timeout_seconds
        )
        sent = {"Accept": "application/json"} | (headers or {})
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            sent["Content-Type"] = content_type
        try:
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            response = connection.getresponse()
            return Answer(status=response.status, body=_parsed(response.read()))
        finally:
            connection.close()


def _parsed(content: bytes) -> Json:
    """Some tests store what Python cannot hold; that is cut as everywhere."""
    try:
        return parsed(content)
    except ValueError:
        return content.decode(errors="replace")


def api_of_kubeconfig(kubectl: Path, kubeconfig: Path) -> tuple[KubeApi, str | None]:
    """The current context of that file, and its token if it has one.

    Raises `ValueError` where it is of no use to tests.
    """
    command = [
        str(kubectl),
        f"--kubeconfig={kubeconfig}",
        "config",
        "view",
        "--minify",
        "--flatten",
        "--raw",
        "-o",
        "json",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise ValueError(f"{kubeconfig} cannot be read: {answer.stderr.strip()}")
    config = json.loads(answer.stdout)
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    if "certificate-authority-data" not in cluster:
        raise ValueError(f"{kubeconfig}: the cluster names no certificate authority; tests verify the server")
    authorities = _decoded(cluster["certificate-authority-data"])
    api = KubeApi(server=cluster["server"], authorities_pem=authorities, token=user.get("token"))
    if "client-certificate-data" in user and "client-key-data" in user:
        api.present_client_certificate(
            certificate_pem=_decoded(user["client-certificate-data"]),
            key_pem=_decoded(user["client-key-data"]),
        )
    elif not user.get("token"):
        raise ValueError(
            f"{kubeconfig}: the user has no token and no client certificate (plugins cannot be used)"
        )
    return api, user.get("token")


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()
