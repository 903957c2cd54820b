"""Everything the kind fleet is made of, as documents. Pure: what comes out depends on what goes in only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hack.fleet.scheduler_config import filled

Document = dict[str, Any]

HUB = "hub"
IMAGE = "muster:kind"
"""Not `latest`: kind's nodes would try to pull that."""
MOUNT = "/etc/muster"
"""Where a member's folder is seen on its node and in its static pods."""
EXTENDER_PORT = 8443
EXTENDER_METRICS_PORT = 8444
NAMESPACE = "muster-system"
NODE_SCHEDULER_KUBECONFIG = "/etc/kubernetes/scheduler.conf"

SCHEDULER_VALUES = {
    "KUBECONFIG": NODE_SCHEDULER_KUBECONFIG,
    # A static pod on the host's network cannot resolve service names.
    "EXTENDER_URL": f"https://127.0.0.1:{EXTENDER_PORT}",
    "SERVER_NAME": "muster-extender",
    "CA_FILE": f"{MOUNT}/extender-pki/ca.crt",
    "CERT_FILE": f"{MOUNT}/extender-pki/client.crt",
    "KEY_FILE": f"{MOUNT}/extender-pki/client.key",
}
"""For the ${...} of manifests/base/member/scheduler-config.yaml."""


@dataclass(frozen=True, slots=True)
class Subnets:
    pods: str
    services: str


def subnets(index: int) -> Subnets:
    """Distinct for each cluster. index: 0 the hub, 1 the first member, up to 100."""
    return Subnets(f"10.{10 + 2 * index}.0.0/16", f"10.{11 + 2 * index}.0.0/16")


def node_name(cluster: str) -> str:
    """The control plane's container: its name on Docker's network, and the node's name in Kubernetes."""
    return f"{cluster}-control-plane"


def cluster_config(cluster: str, index: int, folder: Path | None, workers: int) -> Document:
    """A kind.x-k8s.io/v1alpha4 Cluster. folder: a member's, mounted into its control plane; None for the hub."""
    networks = subnets(index)
    control_plane: Document = {"role": "control-plane"}
    if folder is not None:
        control_plane["extraMounts"] = [{"hostPath": str(folder), "containerPath": MOUNT, "readOnly": True}]
        # kind >= 0.32 writes v1beta4 for Kubernetes >= 1.36 and v1beta3 below, and silently skips a patch of another
        # version: so both. In v1beta3 extraArgs is a map.
        control_plane["kubeadmConfigPatches"] = [
            yaml.safe_dump(
                _scheduler_patch("kubeadm.k8s.io/v1beta4", [_argument("config", f"{MOUNT}/scheduler.yaml")])
            ),
            yaml.safe_dump(_scheduler_patch("kubeadm.k8s.io/v1beta3", {"config": f"{MOUNT}/scheduler.yaml"})),
        ]
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": cluster,
        "networking": {"podSubnet": networks.pods, "serviceSubnet": networks.services},
        "nodes": [control_plane] + [{"role": "worker"}] * workers,
    }


def _argument(name: str, value: str) -> Document:
    return {"name": name, "value": value}


def _scheduler_patch(version: str, arguments: Any) -> Document:
    mount = {"name": "muster", "hostPath": MOUNT, "mountPath": MOUNT, "readOnly": True, "pathType": "Directory"}
    return {
        "kind": "ClusterConfiguration",
        "apiVersion": version,
        "scheduler": {"extraArgs": arguments, "extraVolumes": [mount]},
    }


def scheduler_config(template: str) -> str:
    """The shipped KubeSchedulerConfiguration with the paths of a kind node."""
    return filled(template, SCHEDULER_VALUES)


def extender_pod(user: int, group: int) -> Document:
    """The extender as a static pod beside the scheduler: a scheduler that needs it cannot schedule it.

    user, group: owner of the files in the member's folder.
    """

    def probe(path: str, **more: int) -> Document:
        return {"httpGet": {"host": "127.0.0.1", "port": EXTENDER_METRICS_PORT, "path": path}} | more

    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "muster-extender", "namespace": "kube-system", "labels": {"app": "muster-extender"}},
        "spec": {
            "hostNetwork": True,
            "priorityClassName": "system-node-critical",
            "securityContext": {"runAsUser": user, "runAsGroup": group, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "extender",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "command": [
                        "muster-extender",
                        f"--kubeconfig={MOUNT}/extender.kubeconfig",
                        f"--listen=127.0.0.1:{EXTENDER_PORT}",
                        f"--metrics-listen=127.0.0.1:{EXTENDER_METRICS_PORT}",
                        f"--tls-cert={MOUNT}/extender-pki/server.crt",
                        f"--tls-key={MOUNT}/extender-pki/server.key",
                        f"--client-ca={MOUNT}/extender-pki/ca.crt",
                    ],
                    "livenessProbe": probe("/healthz", initialDelaySeconds=10, periodSeconds=10, failureThreshold=3),
                    "readinessProbe": probe("/readyz", periodSeconds=2),
                    "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [{"name": "muster", "mountPath": MOUNT, "readOnly": True}],
                }
            ],
            "volumes": [{"name": "muster", "hostPath": {"path": MOUNT, "type": "Directory"}}],
        },
    }


def dispatcher_deployment() -> Document:
    """The dispatcher on the hub, with the ServiceAccount of the shipped roles."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "muster-dispatcher", "namespace": NAMESPACE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "muster-dispatcher"}},
            "template": {
                "metadata": {"labels": {"app": "muster-dispatcher"}},
                "spec": {
                    "serviceAccountName": "muster-dispatcher",
                    "automountServiceAccountToken": True,
                    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [
                        {
                            "name": "dispatcher",
                            "image": IMAGE,
                            "imagePullPolicy": "Never",
                            "command": ["muster-dispatcher", "--metrics-listen=0.0.0.0:8086"],
                            "readinessProbe": {"httpGet": {"port": 8086, "path": "/readyz"}, "periodSeconds": 2},
                            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "readOnlyRootFilesystem": True,
                                "capabilities": {"drop": ["ALL"]},
                            },
                        }
                    ],
                },
            },
        },
    }


def member_objects(member: str, kubeconfig: str) -> list[Document]:
    """The hub's objects for a member: its kubeconfig Secret and its MemberCluster."""
    secret = f"{member}-kubeconfig"
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": secret, "namespace": NAMESPACE},
            "stringData": {"kubeconfig": kubeconfig},
        },
        {
            "apiVersion": "muster.dev/v1alpha1",
            "kind": "MemberCluster",
            "metadata": {"name": member},
            "spec": {"kubeconfigSecret": {"name": secret}},
        },
    ]


def namespace(name: str) -> Document:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def on_docker_network(kubeconfig: str, cluster: str) -> str:
    """A kubeconfig whose server is the cluster's name on Docker's network, where the other clusters find it."""
    document: Document = yaml.safe_load(kubeconfig)
    for entry in document["clusters"]:
        entry["cluster"]["server"] = f"https://{node_name(cluster)}:6443"
    return yaml.safe_dump(document, sort_keys=False)
