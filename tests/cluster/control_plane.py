"""A real Kubernetes control plane on loopback ports: etcd, kube-apiserver, kube-controller-manager. No node.

Guarantees: starts in seconds without root, touches nothing outside a temporary folder, and leaves no
process behind however the owner ends (see `server_process`). Authorization is RBAC; the first admin has a
static token; ServiceAccount tokens, owner-reference garbage collection, namespace deletion, aggregated
roles, Jobs and CronJobs work as on any cluster. Pods are accepted and stay pending.

Every part can be killed, paused and started again under the same address and on the same data, and a second
API server can be put on the same etcd. Ports are chosen below the kernel's range for outgoing connections:
a client that keeps dialling a dead port inside that range may connect to itself and hold the port for ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import random
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO
from urllib.request import urlopen

from tests.cluster.audit import audit_events, audit_logs_in
from tests.cluster.build import Binaries, binaries
from tests.cluster.kube_api import Json, KubeApi
from tests.cluster.kubectl import kubeconfig_content, run_kubectl, write_kubeconfig
from tests.cluster.server_process import ServerError, ServerProcess

ADMIN = "fencepost-admin"
AUDIT_POLICY = Path(__file__).parent / "audit_policy.yaml"
FOLDER_PREFIX = "fencepost-control-plane-"
LOWEST_PORT = 20_000

CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "ttl-after-finished-controller",
)
"""What tests rely on. The rest needs nodes or a cloud, and costs memory."""


class ControlPlane:
    """etcd, one or two API servers and the controllers. A context manager; `start` and `stop` do the same."""

    def __init__(self, *, programs: Binaries | None = None, fsync: bool = False) -> None:
        """`fsync=False` is what envtest does: data survives the death of a process, not of the machine."""
        self._programs = programs or binaries()
        self.folder, self._ownership = _new_folder()
        self.admin_token = secrets.token_urlsafe(24)
        self._etcd_port, self._etcd_peer_port, port = (free_port() for _ in range(3))
        self.server = f"https://127.0.0.1:{port}"
        self.ca_file = self.folder / "certificates" / "apiserver.crt"
        self.kubeconfig_file = self.folder / "kubeconfig"
        self._write_files()
        self.etcd = self._new_etcd(fsync=fsync)
        self.apiserver = self._new_apiserver("kube-apiserver", port)
        self.controller_manager = self._new_controller_manager()
        self._more_apiservers: list[ServerProcess] = []

    def start(self) -> Self:
        """Starts everything; returns when requests are answered. Raises `ServerError` with a log's tail."""
        try:
            self.etcd.start()
            self.apiserver.start()  # makes its certificate, which the kubeconfig then names
            self.kubeconfig(self.kubeconfig_file)
            self.controller_manager.start()
        except BaseException:
            self._kill_all()  # the folder stays: it holds the logs that the message names
            raise
        return self

    def stop(self) -> None:
        """Ends everything and removes the data. May be called twice."""
        self._kill_all()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._ownership.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def kubectl_program(self) -> Path:
        return self._programs.kubectl

    def pids(self) -> list[int]:
        """The process ids of what runs now."""
        return [server.pid for server in self._servers() if server.pid is not None]

    def kill_apiserver(self) -> None:
        self.apiserver.kill()

    def start_apiserver(self) -> None:
        self.apiserver.start()

    def kill_etcd(self) -> None:
        self.etcd.kill()

    def start_etcd(self) -> None:
        self.etcd.start()

    def second_apiserver(self) -> str:
        """Starts one more API server on the same etcd, with the same certificate and tokens; its URL."""
        port = free_port()
        another = self._new_apiserver(f"kube-apiserver-{len(self._more_apiservers) + 2}", port)
        self._more_apiservers.append(another)
        another.start()
        return f"https://127.0.0.1:{port}"

    @property
    def more_apiservers(self) -> tuple[ServerProcess, ...]:
        """What `second_apiserver` started, to be killed or paused."""
        return tuple(self._more_apiservers)

    def admin_api(self, server: str | None = None) -> KubeApi:
        """Plain requests as the admin, to the first API server or the one at that URL."""
        authorities = self.ca_file.read_text()
        return KubeApi(server=server or self.server, authorities_pem=authorities, token=self.admin_token)

    def kubeconfig(self, path: Path, *, token: str | None = None, server: str | None = None) -> Path:
        """Writes a kubeconfig for the admin, or for whose `token` that is; returns `path`."""
        content = kubeconfig_content(
            server=server or self.server,
            authorities_pem=self.ca_file.read_text(),
            token=token or self.admin_token,
        )
        return write_kubeconfig(path, content)

    def kubectl(
        self, *arguments: str, input: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs kubectl as the admin. With `check` a failure raises `KubectlError` with what kubectl said."""
        return run_kubectl(self._programs.kubectl, self.kubeconfig_file, *arguments, input=input, check=check)

    def service_account_token(self, namespace: str, name: str) -> str:
        """A bound token of a ServiceAccount that exists, good for an hour."""
        return self.kubectl("create", "token", name, "--namespace", namespace).stdout.strip()

    def restart_controllers(self) -> None:
        """The garbage collector looks for new kinds twice a minute; a fresh one knows them at once."""
        self.controller_manager.kill()
        self.controller_manager.start()

    def audit_logs(self) -> list[Path]:
        return audit_logs_in(self.folder)

    def audit_events(self) -> list[Json]:
        """Every finished request to Fencepost's kinds so far, in the order in which it was written down."""
        return audit_events(self.audit_logs(), self.admin_api())

    def _servers(self) -> list[ServerProcess]:
        return [self.controller_manager, *self._more_apiservers, self.apiserver, self.etcd]

    def _kill_all(self) -> None:
        for server in self._servers():
            server.kill()  # the data goes away with us, so there is nothing to end in order

    def _write_files(self) -> None:
        (self.folder / "certificates").mkdir()
        (self.folder / "tokens.csv").write_text(f'{self.admin_token},{ADMIN},{ADMIN},"system:masters"\n')

    def _new_etcd(self, *, fsync: bool) -> ServerProcess:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._etcd_peer_port))
        command = [
            str(self._programs.etcd),
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            f"--quota-backend-bytes={4 * 2**30}",
            "--log-level=warn",
        ]
        return self._new_server(
            "etcd",
            command if fsync else [*command, "--unsafe-no-fsync"],
            ready=lambda: _answers(f"{client}/readyz"),
        )

    def _new_apiserver(self, name: str, port: int) -> ServerProcess:
        certificates = self.folder / "certificates"
        command = [
            str(self._programs.kube_apiserver),
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={port}",
            "--endpoint-reconciler-type=none",  # the others refuse a loopback address
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--cert-dir={certificates}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={certificates / 'apiserver.key'}",
            f"--service-account-signing-key-file={certificates / 'apiserver.key'}",
            f"--audit-policy-file={AUDIT_POLICY}",
            f"--audit-log-path={self.folder / f'audit-{name}.jsonl'}",
            "--audit-log-maxsize=1000",
            "--profiling=false",
        ]
        return self._new_server(name, command, ready=lambda: self._apiserver_is_ready(port))

    def _new_controller_manager(self) -> ServerProcess:
        port = free_port()
        command = [
            str(self._programs.kube_controller_manager),
            f"--kubeconfig={self.kubeconfig_file}",
            f"--authentication-kubeconfig={self.kubeconfig_file}",
            f"--authorization-kubeconfig={self.kubeconfig_file}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self.folder / 'controller-certificates'}",
            f"--controllers={','.join(CONTROLLERS)}",
            f"--root-ca-file={self.ca_file}",
            "--leader-elect=false",
            # The defaults (20 a second) are meant for clusters that are shared; tests would wait for them.
            "--kube-api-qps=2000",
            "--kube-api-burst=4000",
            "--concurrent-gc-syncs=20",
            "--profiling=false",
        ]
        # Its own certificate is not worth a trust chain: all that is asked of it is whether it is there.
        return self._new_server(
            "kube-controller-manager",
            command,
            ready=lambda: _answers(f"https://127.0.0.1:{port}/healthz", verify=False),
        )

    def _new_server(self, name: str, command: list[str], *, ready: Callable[[], bool]) -> ServerProcess:
        return ServerProcess(name, command, log_file=self.folder / f"{name}.log", ready=ready)

    def _apiserver_is_ready(self, port: int) -> bool:
        if not self.ca_file.exists():
            return False
        try:
            api = self.admin_api(f"https://127.0.0.1:{port}")
            return api.request("GET", "/readyz").ok and api.request("GET", "/api/v1/namespaces/default").ok
        except (OSError, HTTPException):
            return False


def _new_folder() -> tuple[Path, TextIO]:
    """A folder of our own, with a lock that lasts as long as we do: that is how a left folder is told."""
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*/owner"):
        with contextlib.suppress(OSError), open(left) as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its owner lives
            shutil.rmtree(left.parent, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    ownership = open(folder / "owner.new", "w")  # noqa: SIM115 - held until `stop`
    fcntl.flock(ownership, fcntl.LOCK_EX)
    (folder / "owner.new").rename(folder / "owner")  # not to be seen before it is locked
    return folder, ownership


def free_port() -> int:
    """A loopback port on which nobody listens, outside the kernel's range for outgoing connections."""
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = (
        range(LOWEST_PORT, lowest_outgoing)
        if lowest_outgoing > LOWEST_PORT + 1_000
        else range(10_000, 60_000)
    )
    for port in random.sample(ports, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerError("100 loopback ports were tried and none is free")


def _answers(url: str, *, verify: bool = True) -> bool:
    context = None if verify else ssl._create_unverified_context()
    try:
        with urlopen(url, timeout=5, context=context) as response:
            return bool(response.status == 200)
    except (OSError, HTTPException):
        return False
