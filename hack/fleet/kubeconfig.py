"""Kubeconfigs with everything inline, so that a file can be copied or put into a Secret."""

import base64
from pathlib import Path
from typing import Any

import yaml

from hack.fleet.layout import Access, Cluster, link_port


def build(cluster: Cluster, access: Access) -> dict[str, Any]:
    """The kubeconfig of one client for one cluster, over that client's link."""
    identity = access.identity
    port = link_port(cluster.state, access.client, cluster.name)
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": cluster.name,
                "cluster": {
                    "server": f"https://127.0.0.1:{port}",
                    "certificate-authority-data": _inline(cluster.pki / "ca.crt"),
                },
            }
        ],
        "users": [
            {
                "name": identity,
                "user": {
                    "client-certificate-data": _inline(cluster.pki / f"{identity}.crt"),
                    "client-key-data": _inline(cluster.pki / f"{identity}.key"),
                },
            }
        ],
        "contexts": [{"name": cluster.name, "context": {"cluster": cluster.name, "user": identity}}],
        "current-context": cluster.name,
    }


def write_all(cluster: Cluster) -> None:
    """Writes kubeconfig/NAME.yaml for every access of the cluster."""
    for access in cluster.accesses:
        path = cluster.kubeconfig(access.name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(build(cluster, access), sort_keys=False))


def _inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
