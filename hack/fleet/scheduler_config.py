"""The member's KubeSchedulerConfiguration: the shipped files with this machine's paths.

Verbs, timeouts, profiles and back-off are used as shipped (manifests/base/member); only what a test machine needs
otherwise is changed.
"""

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hack.fleet import pki
from hack.fleet.layout import EXTENDER_TARGET, REPOSITORY, Cluster, link_port

SHIPPED = REPOSITORY / "manifests" / "base" / "member"
WITH_EXTENDER = "scheduler-config.yaml"
BREAK_GLASS = "scheduler-config-break-glass.yaml"
"""Without the extender, for the day it is beyond help."""

Document = dict[str, Any]


def write(cluster: Cluster) -> None:
    """Writes both configurations into the cluster's config folder, under the shipped names."""
    port = link_port(cluster.state, f"{cluster.name}/kube-scheduler", f"{cluster.name}/{EXTENDER_TARGET}")
    values = {
        "KUBECONFIG": str(cluster.kubeconfig(pki.SCHEDULER)),
        "EXTENDER_URL": f"https://127.0.0.1:{port}",
        "SERVER_NAME": pki.EXTENDER_SERVER_NAME,
        "CA_FILE": str(cluster.extender_pki / "ca.crt"),
        "CERT_FILE": str(cluster.extender_pki / "client.crt"),
        "KEY_FILE": str(cluster.extender_pki / "client.key"),
    }
    for name in (WITH_EXTENDER, BREAK_GLASS):
        document = localized((SHIPPED / name).read_text(), values)
        (cluster.config / name).write_text(yaml.safe_dump(document, sort_keys=False))


def localized(template: str, values: Mapping[str, str]) -> Document:
    """The template with its ${...} set. Raises KeyError naming one that has no value."""
    document: Document = yaml.safe_load(filled(template, values))
    # The test decides the load, not the client: kube-scheduler's default is 50 requests/s.
    document["clientConnection"] |= {"qps": 1000, "burst": 2000}
    # One scheduler per member: a killed one is to be followed within seconds, but a busy machine must not cost it its
    # Lease, without which the extender posts no Binding.
    document["leaderElection"] |= {"leaseDuration": "10s", "renewDeadline": "6s", "retryPeriod": "1s"}
    return document


def filled(template: str, values: Mapping[str, str]) -> str:
    """The template with its ${...} set and without its comments, which speak of ${...}. Raises KeyError."""
    lines = [line for line in template.splitlines() if not line.lstrip().startswith("#")]
    return string.Template("\n".join(lines)).substitute(values)


def path_of(cluster: Cluster, *, with_extender: bool) -> Path:
    return cluster.config / (WITH_EXTENDER if with_extender else BREAK_GLASS)
