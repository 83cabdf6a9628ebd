"""The cluster as tests see it, the same whether we started it, kind did, or somebody else did.

Guarantees: what the fixtures hand out works at once. An API server learns of a new kind, a policy or a role
binding only after a moment (its informers lag), and a test that does not wait for that fails once in a
hundred runs; so everything here that makes such a thing waits until it has its effect, and says what it
waited for where that does not come.
"""

from __future__ import annotations

import re
import secrets
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Literal

import pytest

from tests.cluster.audit import audit_events, audit_logs_in
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube_api import Answer, Json, KubeApi, api_of_kubeconfig
from tests.cluster.kubectl import kubeconfig_content, run_kubectl, write_kubeconfig

EFFECT_SECONDS_MAX = 60.0
GROUP_PATH = "/apis/fencepost.dev/v1alpha1"
RBAC_PATH = "/apis/rbac.authorization.k8s.io/v1"
OF_NAMESPACE = "fencepost-test-namespace"
"""The label on what lies outside a test's namespace and is to go with it."""

Role = Literal["worker", "operator", "edit", "view", "admin"]

CLUSTER_ROLES: dict[Role, str] = {
    "worker": "fencepost-worker",
    "operator": "fencepost-operator",
    "edit": "edit",
    "view": "view",
    "admin": "admin",
}
"""People get the roles that every cluster has; Fencepost's rules arrive there by aggregation."""

SIGN_OF_ROLE: dict[Role, tuple[str, str, str]] = {
    "worker": ("patch", "leasedtasks", ""),
    "operator": ("patch", "leasedtasks", "status"),
    "edit": ("create", "leasedtasks", ""),
    "view": ("get", "leasedtasks", ""),
    "admin": ("create", "leasedtasks", ""),
}
"""Verb, resource and subresource that show that a binding to the role has its effect."""


class ClusterError(AssertionError):
    """The cluster is not what tests need. The message says what was waited for and what was seen instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster that tests may do anything to. `admin_token` is good for everything in it."""

    server: str
    ca_file: Path
    admin_token: str
    kubeconfig: Path
    kubectl_program: Path
    folder: Path
    """For files of this run: `ca_file`, `kubeconfig`, and what `kubeconfig_for` writes."""
    control_plane_folder: Path | None
    """Logs and audit logs, where we started the cluster ourselves."""

    @property
    def api(self) -> KubeApi:
        """Plain requests as the admin."""
        return self.api_as(self.admin_token)

    def api_as(self, token: str) -> KubeApi:
        """Plain requests as whose token that is."""
        return KubeApi(server=self.server, authorities_pem=self.ca_file.read_text(), token=token)

    def kubectl(
        self, *arguments: str, input: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs kubectl as the admin. With `check`, a failure raises `KubectlError` with what kubectl said."""
        return run_kubectl(self.kubectl_program, self.kubeconfig, *arguments, input=input, check=check)

    def kubeconfig_for(self, token: str, *, namespace: str = "default") -> Path:
        """A kubeconfig of its own for whose token that is, for a process that a test starts."""
        content = kubeconfig_content(
            server=self.server, authorities_pem=self.ca_file.read_text(), token=token, namespace=namespace
        )
        return write_kubeconfig(self.folder / f"kubeconfig-{secrets.token_hex(4)}", content)

    def new_namespace(self, hint: str) -> str:
        """Makes a namespace whose name begins like the hint; its name."""
        slug = re.sub(r"[^a-z0-9]+", "-", hint.lower()).strip("-")[:40] or "test"
        name = f"{slug}-{secrets.token_hex(3)}"
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        _demand(self.api.request("POST", "/api/v1/namespaces", body), f"make namespace {name}")
        return name

    def delete_namespace(self, name: str) -> None:
        """Asks for it and returns; the namespace controller does the rest."""
        self.api.request("DELETE", f"{RBAC_PATH}/clusterrolebindings?labelSelector={OF_NAMESPACE}%3D{name}")
        self.api.request("DELETE", f"/api/v1/namespaces/{name}")

    def service_account(
        self, namespace: str, role: Role, name: str | None = None, *, cluster_wide: bool = False
    ) -> str:
        """Makes a ServiceAccount in that namespace; a token of it that has its rights already.

        It has the role in its namespace only; with `cluster_wide` everywhere, until the namespace is deleted.
        """
        account = name or f"{role}-{secrets.token_hex(3)}"
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        _demand(
            self.api.request("POST", accounts, {"metadata": {"name": account}}), f"make account {account}"
        )
        bindings = "clusterrolebindings" if cluster_wide else f"namespaces/{namespace}/rolebindings"
        binding = _role_binding(namespace=namespace, account=account, cluster_role=CLUSTER_ROLES[role])
        bound = self.api.request("POST", f"{RBAC_PATH}/{bindings}", binding)
        _demand(bound, f"bind {account} to {CLUSTER_ROLES[role]}")
        token = self.service_account_token(namespace, account)
        self._wait_for_role(self.api_as(token), namespace, role)
        return token

    def service_account_token(self, namespace: str, name: str) -> str:
        """A token of a ServiceAccount that exists, good for an hour."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        return str(
            _demand(self.api.request("POST", path, {"spec": {}}), f"get a token of {name}")["status"]["token"]
        )

    def audit_events(self) -> list[Json]:
        """Every finished request to Fencepost's kinds. Skips the test where we did not start the cluster."""
        if self.control_plane_folder is None:
            pytest.skip("counting requests needs the audit log of a control plane that the tests started")
        return audit_events(audit_logs_in(self.control_plane_folder), self.api)

    def install(self, folder: Path) -> None:
        """Applies every YAML file of `crds/`; returns when kinds are served and policies refuse."""
        if not any(folder.glob("*.yaml")):
            return
        applied = self.kubectl(
            "apply", "--server-side", "--force-conflicts", "--filename", str(folder), "--output", "name"
        ).stdout.split()
        kinds = [name for name in applied if name.startswith("customresourcedefinition")]
        if kinds:
            self.kubectl(
                "wait", "--for=condition=Established", f"--timeout={EFFECT_SECONDS_MAX:.0f}s", *kinds
            )
            path = f"{GROUP_PATH}/namespaces/default/leasedtasks"
            _until(lambda: self.api.request("GET", path), lambda answer: answer.ok, "leasedtasks are served")
        if any(name.startswith("validatingadmissionpolicybinding") for name in applied):
            self._wait_for_policies()

    def _wait_for_policies(self) -> None:
        # The binding of this rule is the last one in crds/policies.yaml: when it bites, the others do too.
        task = {
            "apiVersion": "fencepost.dev/v1alpha1",
            "kind": "LeasedTask",
            "metadata": {"generateName": "policies-", "annotations": {"fencepost.dev/fencing-token": "7"}},
            "spec": {"queue": "policies", "request": {}},
        }
        path = f"{GROUP_PATH}/namespaces/default/leasedtasks?dryRun=All"
        _until(
            lambda: self.api.request("POST", path, task),
            lambda answer: "ValidatingAdmissionPolicy" in answer.message,
            "a task that is created with a fencing token is refused by a ValidatingAdmissionPolicy",
        )

    def _wait_for_role(self, api: KubeApi, namespace: str, role: Role) -> None:
        verb, resource, subresource = SIGN_OF_ROLE[role]
        cluster_role = CLUSTER_ROLES[role]
        attributes = {
            "namespace": namespace,
            "verb": verb,
            "group": "fencepost.dev",
            "resource": resource,
            "subresource": subresource,
        }
        body = {"spec": {"resourceAttributes": attributes}}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        _until(
            lambda: api.request("POST", path, body),
            lambda answer: answer.ok and bool(answer.body["status"]["allowed"]),
            f"the server lets ClusterRole {cluster_role} {verb} {resource} {subresource} (crds/rbac.yaml)",
        )


def connect(
    *, kubectl: Path, kubeconfig: Path, folder: Path, control_plane_folder: Path | None = None
) -> Cluster:
    """The cluster of that kubeconfig's current context. Raises `ValueError` where it is of no use to tests.

    Where the admin has a client certificate, as on kind, the token is the admin's own one if the file has
    one; else it is of a ServiceAccount that is made in the namespace `fencepost-tests`.
    """
    admin, token = api_of_kubeconfig(kubectl, kubeconfig)
    ca_file = folder / "ca.crt"
    ca_file.write_text(admin.authorities_pem)
    token = token or _token_of_new_admin(admin)
    content = kubeconfig_content(server=admin.server, authorities_pem=admin.authorities_pem, token=token)
    return Cluster(
        server=admin.server,
        ca_file=ca_file,
        admin_token=token,
        kubeconfig=write_kubeconfig(folder / "kubeconfig", content),
        kubectl_program=kubectl,
        folder=folder,
        control_plane_folder=control_plane_folder,
    )


def cluster_of(plane: ControlPlane) -> Cluster:
    """A control plane of one's own, with the same comforts as the shared one."""
    return Cluster(
        server=plane.server,
        ca_file=plane.ca_file,
        admin_token=plane.admin_token,
        kubeconfig=plane.kubeconfig_file,
        kubectl_program=plane.kubectl_program,
        folder=plane.folder,
        control_plane_folder=plane.folder,
    )


def _token_of_new_admin(admin: KubeApi) -> str:
    """A token with all rights, of an account that is made once and kept: the certificate has no token."""
    name = "fencepost-tests"
    accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "admin", "namespace": name}],
    }
    for path, body in (
        ("/api/v1/namespaces", {"metadata": {"name": name}}),
        (accounts, {"metadata": {"name": "admin"}}),
        (f"{RBAC_PATH}/clusterrolebindings", binding),
    ):
        answer = admin.request("POST", path, body)
        if answer.status != HTTPStatus.CONFLICT:  # it is there from an earlier run
            _demand(answer, f"make an admin account for the tests ({path})")
    asked = admin.request("POST", f"{accounts}/admin/token", {"spec": {"expirationSeconds": 86_400}})
    token = str(_demand(asked, "get a token of the tests' admin account")["status"]["token"])
    _until(
        lambda: admin.acting_with(token).request("GET", "/api/v1/namespaces"),
        lambda answer: answer.ok,
        "the tests' admin account may list namespaces",
    )
    return token


def _role_binding(*, namespace: str, account: str, cluster_role: str) -> Json:
    return {
        "metadata": {
            "name": f"{namespace}-{account}-is-{cluster_role}",
            "labels": {OF_NAMESPACE: namespace},
        },
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": cluster_role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }


def _demand(answer: Answer, what: str) -> Json:
    if not answer.ok:
        raise ClusterError(f"cannot {what}: {answer.status} {answer.message}")
    return answer.body


def _until(ask: Callable[[], Answer], good: Callable[[Answer], bool], what: str) -> None:
    until = time.monotonic() + EFFECT_SECONDS_MAX
    while not good(answer := ask()):
        if time.monotonic() > until:
            seen = answer.message or answer.body
            raise ClusterError(
                f"waited {EFFECT_SECONDS_MAX:.0f} s until {what}; last seen: {answer.status} {seen}"
            )
        time.sleep(0.05)
