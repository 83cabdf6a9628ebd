"""Where the API server is, whom we are there, and in which namespace: in a pod, by kubeconfig, or told.

Guarantees: a ServiceAccount token is read again after a minute and whenever the server no longer takes it,
because the kubelet replaces it in place. The certificate of the server is verified unless a kubeconfig says
otherwise in so many words. What is wrong with a configuration is a sentence (`NoCluster`), never a
traceback.

A kubeconfig is left to the loader of the `kubernetes` package, which knows exec plugins and OIDC. It is
imported on first use: a worker in a pod never pays for it.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_NAMESPACE: Final = "default"
TOKEN_AGE_SECONDS_MAX: Final = 60.0  # what the Kubernetes documentation asks of whoever reads token files


class NoCluster(ValueError):  # noqa: N818 - the sentence a reader sees
    """It cannot be told where the API server is or who we are there; the message says what to do."""


class Credentials(Protocol):
    """Who we are, as the value of the `Authorization` header; None where a client certificate says it."""

    async def authorization(self) -> str | None:
        """The header's value now. Raises `NoCluster`."""

    def distrust(self) -> None:
        """The server did not take it: get it anew next time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """All that a client needs to know. `server` has no slash at its end; `tls` is None for plain http."""

    server: str
    credentials: Credentials
    tls: ssl.SSLContext | None = None
    namespace: str = DEFAULT_NAMESPACE
    proxy: str | None = None
    tls_server_name: str | None = None


@dataclass(frozen=True, slots=True)
class StaticToken:
    """A token that is given once, or none."""

    token: str | None

    async def authorization(self) -> str | None:
        return f"Bearer {self.token}" if self.token else None

    def distrust(self) -> None:
        """There is no other one."""


@dataclass(slots=True)
class TokenFile:
    """A token in a file that somebody replaces from time to time."""

    path: Path
    clock: Callable[[], float] = monotonic
    _token: str = ""
    _read_at: float = field(default=float("-inf"))

    async def authorization(self) -> str | None:
        if self.clock() - self._read_at > TOKEN_AGE_SECONDS_MAX:
            self._token = _file_text(self.path, "the ServiceAccount token")
            self._read_at = self.clock()
        return f"Bearer {self._token}"

    def distrust(self) -> None:
        self._read_at = float("-inf")


@dataclass(slots=True)
class KubeconfigUser:
    """The user of a kubeconfig; its loader runs exec plugins and renews tokens that say when they expire."""

    load: Callable[[], Any]
    configuration: Any

    async def authorization(self) -> str | None:
        return await asyncio.to_thread(self._authorization)  # an exec plugin is a program that takes its time

    def distrust(self) -> None:
        self.configuration = None

    def _authorization(self) -> str | None:
        if self.configuration is None:
            self.configuration = self.load()
        token: str | None = self.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token is None and self.configuration.username:
            token = self.configuration.get_basic_auth_token()
        return token


def connect(
    kubeconfig: str | Path | None = None, context: str | None = None, namespace: str | None = None
) -> Connection:
    """The cluster that is meant: `kubeconfig` or `context` if given, else KUBECONFIG, the pod we are in,
    `~/.kube/config`, in this order. `namespace` overrides what is found there. Raises `NoCluster`.
    """
    named = kubeconfig or os.environ.get("KUBECONFIG")
    if named or context:
        found = of_kubeconfig(named or _home_kubeconfig(), context)
    elif os.environ.get("KUBERNETES_SERVICE_HOST") and (SERVICE_ACCOUNT / "token").exists():
        found = of_pod()
    elif _home_kubeconfig().exists():
        found = of_kubeconfig(_home_kubeconfig(), context)
    else:
        raise NoCluster(
            "no cluster is configured: give a kubeconfig with --kubeconfig or KUBECONFIG, "
            "or run in a pod with a ServiceAccount"
        )
    return replace(found, namespace=namespace) if namespace else found


def explicit(
    server: str, *, ca_file: Path | None, token: str | None, namespace: str = DEFAULT_NAMESPACE
) -> Connection:
    """A server that is known already. Raises `NoCluster` where `ca_file` is no certificate."""
    tls = _tls(ca_file) if server.startswith("https:") else None
    return Connection(server=server.rstrip("/"), credentials=StaticToken(token), tls=tls, namespace=namespace)


def of_pod(folder: Path = SERVICE_ACCOUNT) -> Connection:
    """The API server as a pod finds it: its address in the environment, who we are in `folder`."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise NoCluster("KUBERNETES_SERVICE_HOST is not set: this process does not run in a pod")
    address = f"[{host}]" if ":" in host else host
    return Connection(
        server=f"https://{address}:{port}",
        credentials=TokenFile(folder / "token"),
        tls=_tls(folder / "ca.crt"),
        namespace=_file_text(folder / "namespace", "the namespace of this pod"),
    )


def of_kubeconfig(kubeconfig: str | Path, context: str | None = None) -> Connection:
    """The cluster, user and namespace of a context (the current one if None). Raises `NoCluster`."""
    _refuse_missing(kubeconfig)
    configuration = _loaded(kubeconfig, context)
    return Connection(
        server=str(configuration.host).rstrip("/"),
        credentials=KubeconfigUser(lambda: _loaded(kubeconfig, context), configuration),
        tls=_tls_of(configuration, kubeconfig) if str(configuration.host).startswith("https:") else None,
        namespace=_namespace_of(kubeconfig, context),
        proxy=configuration.proxy,
        tls_server_name=configuration.tls_server_name,
    )


def _home_kubeconfig() -> Path:
    return Path("~/.kube/config").expanduser()


def _refuse_missing(kubeconfig: str | Path) -> None:
    """KUBECONFIG may list several files, of which one suffices."""
    files = [Path(name).expanduser() for name in str(kubeconfig).split(os.pathsep) if name]
    if not any(file.exists() for file in files):
        raise NoCluster(f"the kubeconfig {kubeconfig} does not exist: give another one, or make it")


def _loaded(kubeconfig: str | Path, context: str | None) -> Any:
    loader, configuration = _kubernetes()
    with _sentences(kubeconfig, context):
        loader.load_kube_config(
            config_file=str(Path(kubeconfig).expanduser()),
            context=context,
            client_configuration=configuration,
        )
    return configuration


def _kubernetes() -> tuple[Any, Any]:
    """The loader, and an empty configuration. Imported here because it takes a quarter of a second."""
    from kubernetes import config
    from kubernetes.client import Configuration

    return config, Configuration()


def _namespace_of(kubeconfig: str | Path, context: str | None) -> str:
    loader, _ = _kubernetes()
    with _sentences(kubeconfig, context):
        contexts, current = loader.list_kube_config_contexts(config_file=str(Path(kubeconfig).expanduser()))
    chosen = next((entry for entry in contexts if entry["name"] == context), current)
    return str(chosen["context"].get("namespace") or DEFAULT_NAMESPACE)


class _sentences:  # noqa: N801 - reads as a context manager
    """Turns whatever the loader raises into one sentence that names the file."""

    def __init__(self, kubeconfig: str | Path, context: str | None) -> None:
        self._where = f"{kubeconfig}" + (f", context {context}" if context else "")

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            reason = " ".join(str(error).split()) or type(error).__name__
            raise NoCluster(f"the kubeconfig {self._where} cannot be used: {reason}") from None


def _tls_of(configuration: Any, kubeconfig: str | Path) -> ssl.SSLContext:
    tls = _tls(Path(configuration.ssl_ca_cert) if configuration.ssl_ca_cert else None)
    if not configuration.verify_ssl:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    if configuration.cert_file:
        try:
            tls.load_cert_chain(configuration.cert_file, configuration.key_file)
        except (OSError, ssl.SSLError) as error:
            raise NoCluster(
                f"the client certificate of the kubeconfig {kubeconfig} cannot be used: {error}"
            ) from None
    return tls


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    try:
        tls = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except (OSError, ssl.SSLError) as error:
        raise NoCluster(
            f"the certificate authority of the cluster cannot be read from {ca_file}: {error}"
        ) from None
    # Many clusters' own authorities lack extensions that newer Pythons demand and no other client does.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return tls


def _file_text(path: Path, what: str) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise NoCluster(f"{what} cannot be read from {path}: {error}") from None
    if not text:
        raise NoCluster(f"{what} cannot be read from {path}: the file is empty")
    return text
