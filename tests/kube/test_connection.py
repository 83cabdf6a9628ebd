"""Where the API server is and who we are there; whatever is wrong is one sentence that names the place."""

from __future__ import annotations

import json
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fencepost.kube.connection import (
    TOKEN_AGE_SECONDS_MAX,
    NoCluster,
    TokenFile,
    connect,
    explicit,
    of_kubeconfig,
    of_pod,
)

CA = """\
-----BEGIN CERTIFICATE-----
MIIBdjCCARugAwIBAgIUe5bBNAnZ61HiI0Qj9Ahid/Mz5ZEwCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEdGVzdDAgFw0yNjExMzAxMzQzMjRaGA8yMTI2MTEwNjEzNDMy
NFowDzENMAsGA1UEAwwEdGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABIYi
sj7KXJLvdSflTilAOA4OZ/ZYpJNf2z/4Dbx5TWdXXthEWTkHPxbU/KbPpQ61XRRp
17L3+YlAMXllW9RohjGjUzBRMB0GA1UdDgQWBBTqg0UeK+A8gnWxh7e/TU0mm2FK
+jAfBgNVHSMEGDAWgBTqg0UeK+A8gnWxh7e/TU0mm2FK+jAPBgNVHRMBAf8EBTAD
AQH/MAoGCCqGSM49BAMCA0kAMEYCIQCNoWiPqeQME6ElPl6YxAA3y32uxKYa4LtX
n9hyU1llhAIhAMXuBgMUDWIon51BXKjLhfAMByVxIHVSbNUKzRtkxbYR
-----END CERTIFICATE-----
"""


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No cluster of whoever runs the tests is found."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def kubeconfig(path: Path, *, user: dict[str, Any], cluster: dict[str, Any] | None = None) -> Path:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [{"name": "c", "cluster": cluster or {"server": "http://127.0.0.1:1/"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "from-file"}},
            {"name": "two", "context": {"cluster": "c", "user": "u"}},
        ],
    }
    path.write_text(yaml.safe_dump(content))
    return path


async def test_a_kubeconfig_gives_server_namespace_and_token(tmp_path: Path) -> None:
    found = connect(kubeconfig(tmp_path / "k", user={"token": "secret"}))
    assert (found.server, found.namespace) == ("http://127.0.0.1:1", "from-file")
    assert await found.credentials.authorization() == "Bearer secret"


async def test_another_context_and_a_namespace_that_is_given(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", user={})
    assert connect(path, "two").namespace == "default"
    assert connect(path, "two", "mine").namespace == "mine"
    assert await connect(path).credentials.authorization() is None


def test_the_environment_and_the_home_are_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    kubeconfig(tmp_path / ".kube/config", user={}, cluster={"server": "http://home"})
    assert connect().server == "http://home"
    other = kubeconfig(tmp_path / "other", user={}, cluster={"server": "http://other"})
    monkeypatch.setenv("KUBECONFIG", str(other))
    assert connect().server == "http://other"


async def test_a_token_that_the_server_no_longer_takes_is_read_from_the_file_again(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", user={"token": "old"})
    found = of_kubeconfig(path)
    assert await found.credentials.authorization() == "Bearer old"
    kubeconfig(path, user={"token": "new"})
    found.credentials.distrust()
    assert await found.credentials.authorization() == "Bearer new"


async def test_an_exec_plugin_is_asked(tmp_path: Path) -> None:
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "from-plugin"},
    }
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"print({json.dumps(json.dumps(credential))})"],
        "interactiveMode": "Never",
    }
    found = of_kubeconfig(kubeconfig(tmp_path / "k", user={"exec": plugin}))
    assert await found.credentials.authorization() == "Bearer from-plugin"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "k"),
        ("", "k"),
        ("just text", "k"),
        ("a: [", "k"),
        ("current-context: one\ncontexts: []\nclusters: []\n", "one"),
    ],
)
def test_a_kubeconfig_that_is_none_is_one_sentence(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "k"
    if content is not None:
        path.write_text(content)
    with pytest.raises(NoCluster) as refused:
        connect(path)
    assert str(path) in str(refused.value)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_context_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoCluster, match="three"):
        connect(kubeconfig(tmp_path / "k", user={}), "three")


def test_a_certificate_authority_that_is_not_there_is_named(tmp_path: Path) -> None:
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority": str(tmp_path / "ca.crt")}
    with pytest.raises(NoCluster, match=r"ca\.crt"):
        connect(kubeconfig(tmp_path / "k", user={}, cluster=cluster))


def test_nothing_configured_says_what_to_do() -> None:
    with pytest.raises(NoCluster, match="--kubeconfig"):
        connect()


def test_verification_is_on_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    cluster: dict[str, Any] = {"server": "https://127.0.0.1:1"}
    found = connect(kubeconfig(tmp_path / "k", user={}, cluster=cluster))
    assert found.tls is not None and found.tls.verify_mode is ssl.CERT_REQUIRED
    cluster["insecure-skip-tls-verify"] = True
    found = connect(kubeconfig(tmp_path / "k", user={}, cluster=cluster))
    assert found.tls is not None and found.tls.verify_mode is ssl.CERT_NONE


def pod_folder(tmp_path: Path, *, ca: str) -> Path:
    for name, text in (("token", "t-1\n"), ("namespace", "here\n"), ("ca.crt", ca)):
        (tmp_path / name).write_text(text)
    return tmp_path


async def test_a_pod_finds_its_server_and_namespace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    found = of_pod(pod_folder(tmp_path, ca=CA))
    assert (found.server, found.namespace) == ("https://[fd00::1]:6443", "here")
    assert await found.credentials.authorization() == "Bearer t-1"


def test_a_pod_without_a_usable_authority_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(NoCluster, match=r"ca\.crt"):
        of_pod(pod_folder(tmp_path, ca="no certificate"))
    with pytest.raises(NoCluster, match="certificate authority"):
        explicit("https://127.0.0.1:1", ca_file=tmp_path / "nothing", token=None)


async def test_a_token_file_is_read_again_when_it_is_old_or_not_taken(tmp_path: Path) -> None:
    path, now = tmp_path / "token", 0.0
    credentials = TokenFile(path, clock=lambda: now)
    for text, seconds_later, distrusted, expected in [
        ("one", 0.0, False, "one"),
        ("two", TOKEN_AGE_SECONDS_MAX, False, "one"),
        ("two", 0.1, False, "two"),
        ("three", 0.1, True, "three"),
    ]:
        path.write_text(text + "\n")
        now += seconds_later
        if distrusted:
            credentials.distrust()
        assert await credentials.authorization() == f"Bearer {expected}"


async def test_a_token_file_that_is_empty_or_gone_is_named(tmp_path: Path) -> None:
    credentials = TokenFile(tmp_path / "token")
    with pytest.raises(NoCluster, match="No such file"):
        await credentials.authorization()
    (tmp_path / "token").touch()
    with pytest.raises(NoCluster, match="empty"):
        await credentials.authorization()
