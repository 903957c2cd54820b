"""The member's KubeSchedulerConfiguration: the shipped template with this machine's paths, or one of the fleet's own.

The shipped file (manifests/base/member/scheduler-config.yaml) speaks of the paths of a control plane node; here every
path and address is set to the fleet's, the rest (verbs, timeouts, profiles, back-off) is used as shipped.
"""

from pathlib import Path
from typing import Any

import yaml

from hack.fleet import pki
from hack.fleet.layout import EXTENDER_TARGET, REPOSITORY, Cluster, link_port

SHIPPED = REPOSITORY / "manifests" / "base" / "member" / "scheduler-config.yaml"

Document = dict[str, Any]


def write(cluster: Cluster) -> None:
    """Writes scheduler.yaml and, for the day the extender is beyond help, scheduler-break-glass.yaml."""
    cluster.config.mkdir(parents=True, exist_ok=True)
    template = yaml.safe_load(SHIPPED.read_text()) if SHIPPED.exists() else own_template()
    port = link_port(cluster.state, f"{cluster.name}/kube-scheduler", f"{cluster.name}/{EXTENDER_TARGET}")
    with_extender = localized(
        template, cluster.kubeconfig(pki.SCHEDULER), f"https://127.0.0.1:{port}", cluster.extender_pki
    )
    (cluster.config / "scheduler.yaml").write_text(yaml.safe_dump(with_extender, sort_keys=False))
    (cluster.config / "scheduler-break-glass.yaml").write_text(
        yaml.safe_dump(without_extenders(with_extender), sort_keys=False)
    )


def localized(template: Document, kubeconfig: Path, extender: str, extender_pki: Path) -> Document:
    """The template with this fleet's kubeconfig, extender address (a URL) and certificates."""
    document = dict(template)
    # High client limits: the test decides the load, not the client (kube-scheduler's default is 50 requests/s).
    document["clientConnection"] = {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 2000}
    document["extenders"] = [
        entry
        | {
            "urlPrefix": extender,
            "enableHTTPS": True,
            "tlsConfig": {
                "caFile": str(extender_pki / "ca.crt"),
                "certFile": str(extender_pki / "client.crt"),
                "keyFile": str(extender_pki / "client.key"),
                "serverName": pki.EXTENDER_SERVER_NAME,
            },
        }
        for entry in template.get("extenders", [])
    ]
    document["leaderElection"] = template.get("leaderElection", {}) | {
        # One scheduler per member: short, so that a killed one is replaced within seconds.
        "leaderElect": True,
        "leaseDuration": "4s",
        "renewDeadline": "3s",
        "retryPeriod": "500ms",
        "resourceNamespace": "kube-system",
        "resourceName": "kube-scheduler",
    }
    return document


def without_extenders(document: Document) -> Document:
    """The break-glass configuration: a stock scheduler that serves the same profiles."""
    return {key: value for key, value in document.items() if key != "extenders"}


def own_template() -> Document:
    common = {"nodeCacheCapable": True, "ignorable": False}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "podMaxBackoffSeconds": 2,
        "profiles": [
            {"schedulerName": "default-scheduler"},
            {"schedulerName": "muster", "percentageOfNodesToScore": 100},
        ],
        "extenders": [
            common | {"filterVerb": "filter", "preemptVerb": "preempt", "httpTimeout": "2s"},
            common | {"bindVerb": "bind", "httpTimeout": "75s"},
        ],
    }
