"""What a pod takes on a node, as kube-scheduler counts it (A11): a gang fits when it says so, and not before."""

import contextlib
from typing import Any

import pytest

from hack.fleet.fleet import Cluster
from hack.fleet.spec import NodeShape
from tests.fleet.conftest import SetNodes
from tests.fleet.gang_stories import applied, never_bound, nodes_of, post_gang, wait_event
from tests.fleet.stories import Json, delete_pods, plain_pod, posting, wait_landed

RUNTIMES = "runtimeclasses"


def container(name: str, cpu: str, **spec: Any) -> Json:
    return {"name": name, "image": "registry.example/x:1", "resources": {"requests": {"cpu": cpu}}, **spec}


def limits(cpu: str) -> Json:
    return {"name": "main", "image": "registry.example/x:1", "resources": {"limits": {"cpu": cpu}}}


EFFECTIVE: dict[str, Json] = {
    # sidecar 1 + main 2
    "sidecar": {
        "initContainers": [container("proxy", "1", restartPolicy="Always")],
        "containers": [container("main", "2")],
    },
    # the largest init step: sidecar 1 + init 2, more than sidecar 1 + main 1
    "init-after-sidecar": {
        "initContainers": [container("proxy", "1", restartPolicy="Always"), container("fetch", "2")],
        "containers": [container("main", "1")],
    },
    # an init step before the sidecar is not beside it: max(3, 1 + 1)
    "init-before-sidecar": {
        "initContainers": [container("fetch", "3"), container("proxy", "1", restartPolicy="Always")],
        "containers": [container("main", "1")],
    },
    # limits as requests where absent
    "limits": {"containers": [limits("3")]},
    # two containers
    "two-containers": {"containers": [container("main", "2"), container("log", "1")]},
}
"""Each takes 3 CPUs of a node."""


@pytest.mark.parametrize("what", EFFECTIVE)
def test_a11_effective_pod_request(member1: Cluster, namespace: str, member_nodes: SetNodes, what: str) -> None:
    """Effective pod request: 6 CPUs hold two such pods and not three; 5 hold one. So three of a gang wait on 6 + 2, and
    land on 6 + 3."""
    member_nodes(member1=[NodeShape(count=1, cpu="6", gpus=0), NodeShape(count=1, cpu="2", gpus=0, prefix="small")])
    post_gang(member1, namespace, "gang", 3, **EFFECTIVE[what])
    never_bound(member1, namespace, "gang", "gang-0", "gang-1", "gang-2")
    assert "largest fit 2 of 3 pods" in wait_event(member1, namespace, "gang", "GangDoesNotFit")
    member1.add_nodes(NodeShape(count=1, cpu="3", gpus=0, prefix="late"))
    wait_landed(member1, namespace, "gang", 3)
    assert sorted(nodes_of(member1, namespace).values()) == ["late-0", "member1-0", "member1-0"]


def test_a11_overhead_of_a_runtime_class(member1: Cluster, namespace: str, member_nodes: SetNodes) -> None:
    """Effective pod request: 2 CPUs and 1 of overhead are 3."""
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": f"{namespace}-vm"},
        "handler": "vm",
        "overhead": {"podFixed": {"cpu": "1"}},
    }
    member_nodes(member1=[NodeShape(count=1, cpu="6", gpus=0), NodeShape(count=1, cpu="2", gpus=0, prefix="small")])
    with applied(member1, {RUNTIMES: runtime}):
        post_gang(member1, namespace, "gang", 3, cpu="2", runtimeClassName=f"{namespace}-vm")
        never_bound(member1, namespace, "gang", "gang-0", "gang-1", "gang-2")
        member1.add_nodes(NodeShape(count=1, cpu="3", gpus=0, prefix="late"))
        wait_landed(member1, namespace, "gang", 3)


def test_a11_foreign_pods_and_pod_slots_are_charged(member1: Cluster, namespace: str, member_nodes: SetNodes) -> None:
    """The pods count; DaemonSet and foreign pods are charged: what somebody put on a node past every scheduler, and the
    110 (here 2) pods a node takes at most."""
    nodes = member_nodes(member1=[NodeShape(count=2, cpu="16", gpus=0, pods=2)])["member1"]
    with posting(member1) as post, contextlib.closing(member1.rest()) as rest:
        labels = {"app": "daemon"}
        template = {"metadata": {"labels": labels}, "spec": plain_pod("", "")["spec"]}
        owner = rest.post(
            f"/apis/apps/v1/namespaces/{namespace}/daemonsets",
            {"metadata": {"name": "daemon"}, "spec": {"selector": {"matchLabels": labels}, "template": template}},
        )
        for index, node in enumerate(nodes):
            pod = plain_pod(namespace, f"daemon-{index}", cpu="100m", labels=labels, nodeName=node)
            pod["metadata"]["ownerReferences"] = [
                {
                    "apiVersion": "apps/v1",
                    "kind": "DaemonSet",
                    "name": "daemon",
                    "uid": owner["metadata"]["uid"],
                    "controller": True,
                }
            ]
            post(pod)
        post_gang(member1, namespace, "gang", 3, cpu="1")
        never_bound(member1, namespace, "gang", "gang-0", "gang-1", "gang-2")
        assert "short of pods" in wait_event(member1, namespace, "gang", "GangDoesNotFit")
    delete_pods(member1, namespace, "daemon-0")
    wait_landed(member1, namespace, "gang", 3)
