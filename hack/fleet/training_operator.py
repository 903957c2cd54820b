"""Runs the real Kubeflow training operator outside of the cluster it serves.

It was made to run in a pod: it fills a Secret with its webhook's certificate and waits until the kubelet has mounted
that Secret. Here the Secret's keys are copied to where it looks. The certificate is for a Service's name, so the API
server is led to loopback by a Service of type ExternalName.
"""

import base64
import time
from pathlib import Path

from hack.fleet import pki, provision
from hack.fleet.build import assets_folder
from hack.fleet.layout import Cluster
from hack.fleet.rest import Rest
from hack.fleet.state import FleetError
from hack.fleet.versions import TRAINING_OPERATOR

NAMESPACE = "kubeflow"
SECRET = "training-operator-webhook-cert"  # noqa: S105 - the Secret's name
_WEBHOOK_PATH = "k8s-webhook-server/serving-certs"
_PRESENCE_CHECK = Path("/tmp") / _WEBHOOK_PATH / "tls.crt"  # noqa: S108 - the operator's own fixed path
_CERTIFICATE_SECONDS = 60.0


def prepare(cluster: Cluster, kubectl: Path) -> None:
    """What has to be in the member before the operator starts."""
    port = cluster.port("operator webhook")
    [webhooks] = provision.documents([assets_folder(TRAINING_OPERATOR) / "base" / "webhook" / "manifests.yaml"])
    webhooks["metadata"]["name"] = provision.OPERATOR_WEBHOOK
    # Of the other kinds neither CRD nor controller is there.
    webhooks["webhooks"] = [w for w in webhooks["webhooks"] if w["rules"][0]["resources"] == ["pytorchjobs"]]
    for webhook in webhooks["webhooks"]:
        webhook["clientConfig"]["service"] |= {"name": "training-operator", "namespace": NAMESPACE, "port": port}
    provision.apply(
        cluster,
        kubectl,
        [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": SECRET, "namespace": NAMESPACE},
            },
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "training-operator", "namespace": NAMESPACE},
                "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
            },
            webhooks,
        ],
    )
    # The presence check ignores TMPDIR; any file will do, whichever fleet made it.
    _PRESENCE_CHECK.parent.mkdir(parents=True, exist_ok=True)
    _PRESENCE_CHECK.touch()
    (cluster.operator_temp / _WEBHOOK_PATH).mkdir(parents=True, exist_ok=True)


def mount_certificate(cluster: Cluster) -> None:
    """Plays the kubelet: waits until the started operator has filled its Secret and copies the keys into place."""
    rest = Rest(cluster.kubeconfig(pki.ADMIN))
    deadline = time.monotonic() + _CERTIFICATE_SECONDS
    try:
        while not (data := rest.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET}").get("data")):
            if time.monotonic() > deadline:
                raise FleetError(f"{cluster.name}: the training operator has not filled the Secret {SECRET}")
            time.sleep(0.1)
    finally:
        rest.close()
    for key, value in data.items():
        path = cluster.operator_temp / _WEBHOOK_PATH / key
        path.touch(mode=0o600)
        path.write_bytes(base64.b64decode(value))
