"""Fills a cluster whose API server is up: namespaces, CRDs, roles, nodes, the hub's members. All of it idempotent."""

import json
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from hack.fleet import kubeconfig, nodes, pki
from hack.fleet.build import assets_folder
from hack.fleet.layout import MUSTER_NAMESPACE, REPOSITORY, Cluster
from hack.fleet.rest import Rest, RestError
from hack.fleet.spec import MemberSpec
from hack.fleet.state import FleetError
from hack.fleet.versions import TRAINING_OPERATOR

Document = dict[str, Any]

OPERATOR_WEBHOOK = "validator.training-operator.kubeflow.org"
"""The training operator looks for its ValidatingWebhookConfiguration under this name."""
CRDS = REPOSITORY / "manifests" / "crds"
SECOND_SCHEDULER = REPOSITORY / "manifests" / "base" / "member" / "second-scheduler.yaml"
_SERVED_SECONDS = 60.0
# The training operator's CRD has 609 kB: 1.2 s with the Python parser.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def objects(cluster: Cluster, kubectl: Path, member: MemberSpec | None) -> None:
    """Namespaces, CRDs (and waits until they are served), roles. Raises FleetError with kubectl's words."""
    namespaces = [MUSTER_NAMESPACE, "kube-queue"] if cluster.is_hub else [MUSTER_NAMESPACE]
    apply(cluster, kubectl, [_namespace(name) for name in namespaces])
    if crds := crd_documents(member):
        apply(cluster, kubectl, crds)
        _wait_served(cluster, crds)
    if member is not None and member.operator != "real":
        _forget_webhook(cluster)
    roles = [] if member is None else documents([Path(__file__).parent / "rbac" / "member.yaml"])
    side = "hub" if cluster.is_hub else "member"
    shipped = documents(sorted((REPOSITORY / "manifests" / "base" / side).glob("rbac*.yaml")))
    if member is not None and member.mode == "managed":
        # The ServiceAccount that its bindings name is among the extender's roles.
        shipped += [d for d in documents([SECOND_SCHEDULER]) if d["apiVersion"].startswith("rbac.")]
    apply(cluster, kubectl, roles + [with_users(document) for document in shipped])


def crd_documents(member: MemberSpec | None) -> list[Document]:
    """The CRDs of one cluster: ours, and on a member the PyTorchJob of its operator's dialect instead of the union."""
    side = "hub" if member is None else "member"
    found = documents([*sorted(CRDS.glob("*.yaml")), *sorted((CRDS / side).glob("*.yaml"))])
    crds = [d for d in found if d.get("kind") == "CustomResourceDefinition"]
    if member is None:
        return crds
    ours = [crd for crd in crds if crd["spec"]["names"]["kind"] != "PyTorchJob"]
    return ours + documents([dialect_crd(member.dialect)])


def dialect_crd(dialect: str) -> Path:
    """The file of a dialect's PyTorchJob CRD."""
    if dialect == "training-operator":
        return assets_folder(TRAINING_OPERATOR) / "base" / "crds" / "kubeflow.org_pytorchjobs.yaml"
    found = sorted((REPOSITORY / "hack" / "operator" / "crds").glob("*arena*.yaml"))
    if not found:
        raise FleetError("no CRD of the arena dialect in hack/operator/crds")
    return found[0]


def with_users(document: Document) -> Document:
    """A role binding extended to the certificate user that has the name of a bound ServiceAccount.

    The shipped bindings name ServiceAccounts; outside of pods the programs come with client certificates.
    """
    if document.get("kind") not in ("RoleBinding", "ClusterRoleBinding"):
        return document
    subjects = document.get("subjects", [])
    bound = {subject["name"] for subject in subjects if subject["kind"] == "User"}
    accounts = dict.fromkeys(subject["name"] for subject in subjects if subject["kind"] == "ServiceAccount")
    users = [
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}
        for name in accounts
        if name not in bound
    ]
    return document | {"subjects": subjects + users}


def register_members(hub: Cluster, members: Iterable[Cluster], kubectl: Path) -> None:
    """A MemberCluster and its kubeconfig Secret (the dispatcher's identity in that member) for each member."""
    found: list[Document] = []
    for member in members:
        secret = f"{member.name}-kubeconfig"
        access = kubeconfig.build(member, member.access(pki.DISPATCHER))
        found += [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": secret, "namespace": MUSTER_NAMESPACE},
                "stringData": {"kubeconfig": yaml.safe_dump(access)},
            },
            {
                "apiVersion": "muster.dev/v1alpha1",
                "kind": "MemberCluster",
                "metadata": {"name": member.name},
                "spec": {"kubeconfigSecret": {"name": secret}},
            },
        ]
    apply(hub, kubectl, found)


def first_nodes(cluster: Cluster, member: MemberSpec) -> None:
    """The nodes of the spec, unless the member has nodes already."""
    rest = Rest(cluster.kubeconfig(pki.ADMIN))
    try:
        if not nodes.names(rest):
            nodes.add(rest, cluster.name, member.nodes)
    finally:
        rest.close()


def apply(cluster: Cluster, kubectl: Path, found: list[Document]) -> None:
    """Server-side apply (the PyTorchJob CRD is too large for the client-side annotation)."""
    if not found:
        return
    done = subprocess.run(
        [
            kubectl,
            f"--kubeconfig={cluster.kubeconfig(pki.ADMIN)}",
            f"--cache-dir={cluster.folder / 'kubectl-cache'}",
            "apply",
            "--server-side",
            "--force-conflicts",
            "--field-manager=muster-fleet",
            "-f",
            "-",
        ],
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": found}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise FleetError(f"{cluster.name}: kubectl apply failed:\n{done.stderr.strip()[-3000:]}")


def documents(files: Iterable[Path]) -> list[Document]:
    """All YAML documents of the files, in order. Raises FleetError naming the file that is not YAML."""
    found: list[Document] = []
    for file in files:
        try:
            found += [d for d in yaml.load_all(file.read_text(), Loader=_LOADER) if d]
        except (OSError, yaml.YAMLError) as error:
            raise FleetError(f"{file}: {error}") from error
    return found


def _forget_webhook(cluster: Cluster) -> None:
    """Takes away the real operator's webhook: nobody would answer it, and it fails closed."""
    rest = Rest(cluster.kubeconfig(pki.ADMIN))
    try:
        rest.delete(f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{OPERATOR_WEBHOOK}")
    finally:
        rest.close()


def _namespace(name: str) -> Document:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _wait_served(cluster: Cluster, crds: list[Document]) -> None:
    """Waits until every kind can be listed; a CRD is Established a moment before that."""
    waiting = {_list_path(crd) for crd in crds}
    rest = Rest(cluster.kubeconfig(pki.ADMIN))
    deadline = time.monotonic() + _SERVED_SECONDS
    try:
        while waiting := {path for path in waiting if not _is_served(rest, path)}:
            if time.monotonic() > deadline:
                raise FleetError(
                    f"{cluster.name}: not served within {_SERVED_SECONDS:g}s: {', '.join(sorted(waiting))}"
                )
            time.sleep(0.05)
    finally:
        rest.close()


def _list_path(crd: Document) -> str:
    spec = crd["spec"]
    [version] = [v["name"] for v in spec["versions"] if v["storage"]]
    return f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"


def _is_served(rest: Rest, path: str) -> bool:
    try:
        rest.get(f"{path}?limit=1")
    except RestError as error:
        if error.status in (404, 429, 503):  # 429: "storage is (re)initializing"
            return False
        raise
    return True
