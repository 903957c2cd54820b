"""Node objects for kwok-managed nodes, and their life in a member."""

from hack.fleet.rest import Json, Rest
from hack.fleet.spec import NodeShape, SpecError

GPU = "nvidia.com/gpu"
MADE_BY = {"muster.dev/fleet-node": "true"}
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def node(name: str, shape: NodeShape) -> Json:
    """A Ready node: a created Node keeps its status, so it can be used before kwok has seen it."""
    resources = {"cpu": shape.cpu, "memory": shape.memory, "pods": str(shape.pods), "ephemeral-storage": "1Ti"}
    if shape.gpus:
        resources[GPU] = str(shape.gpus)
    resources |= shape.extended
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "type": "kwok",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels | MADE_BY | shape.labels,
            "annotations": {"node.alpha.kubernetes.io/ttl": "0", "kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": [taint(text) for text in shape.taints]} if shape.taints else {},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "simulated",
                    "lastHeartbeatTime": "2024-01-01T00:00:00Z",
                    "lastTransitionTime": "2024-01-01T00:00:00Z",
                }
            ],
            "phase": "Running",
        },
    }


def taint(text: str) -> Json:
    """`key=value:Effect` or `key:Effect`. Raises SpecError on anything else."""
    left, _, effect = text.rpartition(":")
    key, _, value = left.partition("=")
    if not key or effect not in _EFFECTS:
        raise SpecError(f"taint {text!r} must be key=value:Effect or key:Effect, Effect one of {', '.join(_EFFECTS)}")
    return {"key": key, "effect": effect} | ({"value": value} if value else {})


def names(rest: Rest) -> list[str]:
    return sorted(item["metadata"]["name"] for item in rest.get("/api/v1/nodes")["items"])


def add(rest: Rest, prefix: str, shapes: tuple[NodeShape, ...]) -> list[str]:
    """Creates the nodes of every shape as PREFIX-<number>, numbering on from what is there; returns their names."""
    taken = set(names(rest))
    made = []
    for shape in shapes:
        stem = shape.prefix or prefix
        number = 0
        for _ in range(shape.count):
            while f"{stem}-{number}" in taken:
                number += 1
            name = f"{stem}-{number}"
            rest.post("/api/v1/nodes", node(name, shape))
            taken.add(name)
            made.append(name)
    return made


def replace_all(rest: Rest, prefix: str, shapes: tuple[NodeShape, ...]) -> list[str]:
    """Makes the member's nodes exactly these. Pods of the old nodes are deleted at once, as their kubelets would."""
    for pod in rest.get("/api/v1/pods")["items"]:
        if pod["spec"].get("nodeName"):
            metadata = pod["metadata"]
            rest.delete(f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}", grace_seconds=0)
    for name in names(rest):
        rest.delete(f"/api/v1/nodes/{name}")
    return add(rest, prefix, shapes)
