"""The member's KubeSchedulerConfigurations: the shipped files with this machine's paths.

Verbs, timeouts, profiles and back-off are used as shipped (manifests/base/member); only what a test machine needs
otherwise is changed.
"""

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hack.fleet import pki
from hack.fleet.layout import REPOSITORY, Cluster, link_port
from hack.fleet.pairs import CLUSTERS_OWN, SECOND, Pair, pairs

SHIPPED = REPOSITORY / "manifests" / "base" / "member"
WITH_EXTENDER = "scheduler-config.yaml"
BREAK_GLASS = "scheduler-config-break-glass.yaml"
"""Without the extender, for the day it is beyond help."""
SECOND_SCHEDULER = "second-scheduler.yaml"
"""Its ConfigMap holds the configuration of the managed install's scheduler."""

Document = dict[str, Any]


def write(cluster: Cluster) -> None:
    """Writes the configurations of the member's schedulers into its config folder."""
    member = cluster.state.spec.member(cluster.name)
    if member.mode == "managed":
        _save(cluster, CLUSTERS_OWN, providers_own(), with_extender=False)
    for pair in pairs(member):
        values = _values(cluster, pair)
        if pair.kind == SECOND:
            _save(cluster, pair.scheduler, second((SHIPPED / SECOND_SCHEDULER).read_text(), values))
            continue
        for template, with_extender in ((WITH_EXTENDER, True), (BREAK_GLASS, False)):
            document = yaml.safe_load(filled((SHIPPED / template).read_text(), values))
            _save(cluster, pair.scheduler, document, with_extender=with_extender)


def path_of(cluster: Cluster, scheduler: str, *, with_extender: bool = True) -> Path:
    """The shipped names for the cluster's own scheduler, the same in a folder of its name for others."""
    folder = cluster.config if scheduler == CLUSTERS_OWN else cluster.config / scheduler
    return folder / (WITH_EXTENDER if with_extender else BREAK_GLASS)


def second(manifest: str, values: Mapping[str, str]) -> Document:
    """The configuration in the managed install's ConfigMap, with the values of the other template's ${...}."""
    [config] = [d for d in yaml.safe_load_all(manifest) if d["kind"] == "ConfigMap"]
    document: Document = yaml.safe_load(config["data"]["scheduler-config.yaml"])
    for entry in document["extenders"]:
        entry["urlPrefix"] = values["EXTENDER_URL"]
        tls = {"caFile": "CA_FILE", "certFile": "CERT_FILE", "keyFile": "KEY_FILE", "serverName": "SERVER_NAME"}
        entry["tlsConfig"] = {field: values[name] for field, name in tls.items()}
    return document


def providers_own() -> Document:
    """What a managed cluster's own scheduler has: nothing that is not the default."""
    return {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def localized(document: Document, kubeconfig: Path) -> Document:
    """For this machine: the kubeconfig, no client limits, and Leases that a test can wait for."""
    # The test decides the load, not the client: kube-scheduler's default is 50 requests/s.
    client = {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 2000}
    # A killed scheduler is to be followed within seconds, but a busy machine must not cost it its Lease, without
    # which the extender posts no Binding.
    election = {"leaseDuration": "10s", "renewDeadline": "6s", "retryPeriod": "1s"}
    return document | {
        "clientConnection": document.get("clientConnection", {}) | client,
        "leaderElection": document.get("leaderElection", {}) | election,
    }


def filled(template: str, values: Mapping[str, str]) -> str:
    """The template with its ${...} set and without its comments, which speak of ${...}. Raises KeyError."""
    lines = [line for line in template.splitlines() if not line.lstrip().startswith("#")]
    return string.Template("\n".join(lines)).substitute(values)


def _save(cluster: Cluster, scheduler: str, document: Document, *, with_extender: bool = True) -> None:
    path = path_of(cluster, scheduler, with_extender=with_extender)
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(localized(document, cluster.kubeconfig(scheduler)), sort_keys=False))


def _values(cluster: Cluster, pair: Pair) -> dict[str, str]:
    port = link_port(cluster.state, f"{cluster.name}/{pair.scheduler}", f"{cluster.name}/{pair.extender}")
    return {
        "KUBECONFIG": str(cluster.kubeconfig(pair.scheduler)),
        "EXTENDER_URL": f"https://127.0.0.1:{port}",
        "SERVER_NAME": pki.EXTENDER_SERVER_NAME,
        "CA_FILE": str(cluster.extender_pki / "ca.crt"),
        "CERT_FILE": str(cluster.extender_pki / "client.crt"),
        "KEY_FILE": str(cluster.extender_pki / "client.key"),
    }
