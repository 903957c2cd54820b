"""What the fleet tests have in common: jobs as users write them, and what to look at afterwards."""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import yaml

from hack.fleet.audit import AuditEvent
from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.pki import EXTENDER
from hack.fleet.rest import RestError

Json = dict[str, Any]

GENEROUS = 60.0
"""Seconds within which anything that has to happen happens, even on two busy cores. Goals are printed, not asserted."""


def pytorch_job(
    namespace: str,
    name: str,
    *,
    workers: int = 2,
    cpu: str = "1",
    memory: str = "1Gi",
    gpus: int = 0,
    master_cpu: str | None = None,
    run_for: str = "",
) -> Json:
    """A job of one Master and `workers` Workers. `cpu`, `memory`, `gpus` per pod; `run_for` as a Go duration."""

    def role(replicas: int, role_cpu: str) -> Json:
        resources: Json = {"requests": {"cpu": role_cpu, "memory": memory}}
        if gpus:
            resources["limits"] = {"nvidia.com/gpu": str(gpus)}
        annotations = {"sim/run-for": run_for} if run_for else {}
        container = {"name": "pytorch", "image": "registry.example/train:1", "resources": resources}
        return {
            "replicas": replicas,
            "restartPolicy": "Never",
            "template": {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}},
        }

    roles = {"Master": role(1, master_cpu or cpu)}
    if workers:
        roles["Worker"] = role(workers, cpu)
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"runPolicy": {"cleanPodPolicy": "None"}, "pytorchReplicaSpecs": roles},
    }


def policy(namespace: str, *, queued: bool = False, name: str = "example-policy", **spec: Any) -> Json:
    """The walk-through's PropagationPolicy, in gang or in queue mode."""
    body: Json = {
        "propagateDeps": True,
        "placement": {"replicaScheduling": {"replicaSchedulingType": "Divided", "customSchedulingType": "Gang"}},
        "resourceSelectors": [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}],
    }
    if queued:
        body["suspension"] = {"scheduling": True}
    return {
        "apiVersion": "policy.one.alibabacloud.com/v1alpha1",
        "kind": "PropagationPolicy",
        "metadata": {"namespace": namespace, "name": name},
        "spec": body | spec,
    }


def read(cluster: Cluster, path: str) -> Json | None:
    """GET; None when it is not there."""
    try:
        return cluster.get(path)
    except RestError as error:
        if error.status == 404:
            return None
        raise


def hub_job(hub: Cluster, namespace: str, name: str) -> Json | None:
    return read(hub, f"/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs/{name}")


def state_of(job: Json | None) -> str:
    """STATE as kubectl prints it: the type of the last condition."""
    conditions = ((job or {}).get("status") or {}).get("conditions") or [{}]
    return str(conditions[-1].get("type", ""))


def resource_binding(hub: Cluster, namespace: str, job: str) -> Json | None:
    return read(hub, f"/apis/muster.dev/v1alpha1/namespaces/{namespace}/resourcebindings/{job}-pytorchjob")


def condition(found: Json | None, kind: str) -> Json:
    """A condition of an object by its type; {} when there is none."""
    conditions = ((found or {}).get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind), {})


def pods(cluster: Cluster, namespace: str) -> list[Json]:
    return list(cluster.get(f"/api/v1/namespaces/{namespace}/pods")["items"])


def bound(cluster: Cluster, namespace: str, prefix: str = "") -> list[str]:
    """Names of the pods that have a node."""
    return sorted(
        p["metadata"]["name"]
        for p in pods(cluster, namespace)
        if p["spec"].get("nodeName") and p["metadata"]["name"].startswith(prefix)
    )


def running(cluster: Cluster, namespace: str, prefix: str = "") -> list[str]:
    return sorted(
        p["metadata"]["name"]
        for p in pods(cluster, namespace)
        if p["status"].get("phase") == "Running" and p["metadata"]["name"].startswith(prefix)
    )


def wait_landed(cluster: Cluster, namespace: str, job: str, count: int, timeout: float = GENEROUS) -> None:
    """All pods of the job have a node in this cluster."""
    try:
        wait_for(
            f"{count} pods of {job} bound in {cluster.name}",
            lambda: len(bound(cluster, namespace, f"{job}-")) == count,
            timeout,
        )
    except AssertionError as error:
        error.add_note(
            json.dumps(
                [(p["metadata"]["name"], p["spec"].get("nodeName"), p["status"]) for p in pods(cluster, namespace)],
                indent=1,
            )[:4000]
        )
        raise


def bindings_posted(cluster: Cluster, namespace: str, since: int = 0) -> list[AuditEvent]:
    """Successful Bindings of this namespace's pods, in the order the API server took them."""
    return [
        e
        for e in cluster.audit_events(since)
        if e.resource == "pods" and e.subresource == "binding" and e.namespace == namespace and e.code == 201
    ]


def seconds_between(first: AuditEvent, last: AuditEvent) -> float:
    """Between the arrivals of two requests, by the API server's clock."""
    return (datetime.fromisoformat(last.time) - datetime.fromisoformat(first.time)).total_seconds()


def assert_bound_once(events: list[AuditEvent]) -> None:
    """Every Binding came from the extender, and each pod was bound once."""
    assert {e.user for e in events} <= {EXTENDER}
    twice = [name for name, times in Counter(e.name for e in events).items() if times > 1]
    assert not twice, f"bound more than once: {twice}"


def assert_no_node_overcommitted(cluster: Cluster, cpu_of: Callable[[Json], int]) -> None:
    """The sum of the pods' CPUs on each node is at most its allocatable (whole CPUs)."""
    used: Counter[str] = Counter()
    for pod in cluster.get("/api/v1/pods")["items"]:
        if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            used[pod["spec"]["nodeName"]] += cpu_of(pod)
    for node in cluster.get("/api/v1/nodes")["items"]:
        name, size = node["metadata"]["name"], int(node["status"]["allocatable"]["cpu"])
        assert used[name] <= size, f"{name}: {used[name]} CPUs given, {size} there"


def requested_cpu(pod: Json) -> int:
    """Whole CPUs that the pod's containers request."""
    return sum(int(c["resources"].get("requests", {}).get("cpu", 0)) for c in pod["spec"]["containers"])


def plain_pod(namespace: str, name: str, *, cpu: str = "1", labels: dict[str, str] | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": labels or {}},
        "spec": {
            "containers": [
                {"name": "main", "image": "registry.example/main:1", "resources": {"requests": {"cpu": cpu}}}
            ],
            **spec,
        },
    }


def pod_group(namespace: str, name: str, min_member: int, **spec: Any) -> Json:
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"minMember": min_member, **spec},
    }


def gang_pod(namespace: str, gang: str, index: int, *, cpu: str = "1", **spec: Any) -> Json:
    """A pod of the user's own gang."""
    return plain_pod(namespace, f"{gang}-{index}", cpu=cpu, labels={"scheduling.x-k8s.io/pod-group": gang}, **spec)


@contextlib.contextmanager
def posting(cluster: Cluster) -> Iterator[Callable[[Json], Json]]:
    """A function that creates objects over one connection, for pods that have to come quickly one after another."""
    plural = {"Pod": "/api/v1", "PodGroup": "/apis/scheduling.x-k8s.io/v1alpha1"}
    with contextlib.closing(cluster.rest()) as rest:

        def post(body: Json) -> Json:
            base = plural[body["kind"]]
            return rest.post(f"{base}/namespaces/{body['metadata']['namespace']}/{body['kind'].lower()}s", body)

        yield post


def delete_pods(cluster: Cluster, namespace: str, prefix: str = "") -> None:
    """At once, without waiting for a kubelet, and waits until they are gone."""
    with contextlib.closing(cluster.rest()) as rest:
        for pod in pods(cluster, namespace):
            if pod["metadata"]["name"].startswith(prefix):
                rest.delete(f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}", grace_seconds=0)
    wait_for(
        f"the pods {prefix}* gone",
        lambda: not [p for p in pods(cluster, namespace) if p["metadata"]["name"].startswith(prefix)],
    )


def events_about(cluster: Cluster, namespace: str, name: str) -> list[Json]:
    found = cluster.get(f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name={name}")
    return list(found["items"])


def load_example(name: str) -> str:
    """A YAML file of examples/, unchanged."""
    from pathlib import Path  # noqa: PLC0415

    return (Path(__file__).parents[2] / "examples" / name).read_text()


def document(text: str) -> Json:
    found: Json = yaml.safe_load(text)
    return found


def nothing_left(fleet: Fleet, namespace: str) -> None:
    """No reservation, copy, PodGroup or pod of this namespace's jobs in any member, no binding on the hub."""

    def leftovers() -> list[str]:
        found = []
        for member in fleet.members.values():
            base = f"/namespaces/{namespace}"
            for path in (
                f"/apis/kubeflow.org/v1{base}/pytorchjobs",
                f"/apis/scheduling.x-k8s.io/v1alpha1{base}/podgroups",
                f"/api/v1{base}/pods",
            ):
                found += [f"{member.name}{path}/{i['metadata']['name']}" for i in member.get(path)["items"]]
            for item in member.get("/apis/muster.dev/v1alpha1/gangreservations")["items"]:
                if item["spec"]["jobNamespace"] == namespace:
                    found.append(f"{member.name}/gangreservations/{item['metadata']['name']}")
        bindings = fleet.hub.get(f"/apis/muster.dev/v1alpha1/namespaces/{namespace}/resourcebindings")["items"]
        return found + [f"hub/resourcebindings/{b['metadata']['name']}" for b in bindings]

    last: list[str] = []

    def gone() -> bool:
        last[:] = leftovers()
        return not last

    try:
        wait_for(f"nothing left of {namespace}", gone, GENEROUS)
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from None


class Stopwatch:
    """Prints how long a block took: `  <what>: 0.42 s (goal 2 s)`."""

    def __init__(self, what: str, goal: str = "") -> None:
        self._what, self._goal = what, goal

    def __enter__(self) -> "Stopwatch":
        self._began = time.monotonic()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            goal = f" (goal {self._goal})" if self._goal else ""
            print(f"\n  {self._what}: {time.monotonic() - self._began:.2f} s{goal}")
