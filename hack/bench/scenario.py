"""What is measured: so many pods, in gangs or not, on so many nodes. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hack.fleet import nodes
from hack.fleet.spec import NodeShape
from kube.objects.names import DEFAULT_SCHEDULER, MUSTER_SCHEDULER, POD_GROUP

Json = dict[str, Any]

NAMESPACE = "bench"
NODE = NodeShape(cpu="16", memory="64Gi", gpus=0)
"""With pods of one CPU and 1 GiB, as in the public benchmark wzshiming/kube-scheduling-perf."""


SAMPLED_FROM = 1000
"""Nodes."""


class ScenarioError(ValueError):
    """A load that cannot be: the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Shape:
    """`count` gangs of `size` pods each."""

    count: int
    size: int

    @property
    def pods(self) -> int:
        return self.count * self.size

    def __str__(self) -> str:
        return f"{self.count}x{self.size}"


@dataclass(frozen=True, slots=True)
class Contender:
    """Who binds the pods. shape: None for the stock scheduler, which knows no gangs. profile: the pods' schedulerName;
    `muster` has every node looked at for every pod, `default-scheduler` a sample as for stock's."""

    pods: int
    shape: Shape | None = None
    profile: str = DEFAULT_SCHEDULER

    @property
    def name(self) -> str:
        if self.shape is None:
            return "stock"
        return f"muster {self.shape}" + (" sampled" if self.profile == DEFAULT_SCHEDULER else "")

    def pod_groups(self) -> Iterator[Json]:
        """The PodGroups, each as large as its gang."""
        if self.shape is not None:
            for number in range(self.shape.count):
                yield {
                    "apiVersion": "scheduling.x-k8s.io/v1alpha1",
                    "kind": "PodGroup",
                    "metadata": {"namespace": NAMESPACE, "name": f"gang-{number}"},
                    "spec": {"minMember": self.shape.size},
                }

    def pod_documents(self) -> Iterator[Json]:
        """The pods, gang after gang."""
        for index in range(self.pods):
            gang = f"gang-{index // self.shape.size}" if self.shape is not None else ""
            yield {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "namespace": NAMESPACE,
                    "name": f"pod-{index}",
                    "labels": {"app": "bench"} | ({POD_GROUP: gang} if gang else {}),
                },
                "spec": {
                    "schedulerName": self.profile,
                    "automountServiceAccountToken": False,
                    "containers": [
                        {
                            "name": "main",
                            "image": "registry.example/main:1",
                            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
                        }
                    ],
                },
            }


def contenders(nodes: int, shapes: tuple[Shape, ...]) -> list[Contender]:
    """One stock run beside every size of load, and muster in each shape. The stock run serves all shapes of its size:
    to a scheduler without gangs they are the same. From SAMPLED_FROM nodes on, muster's gangs come through the default
    profile too: to look at every node for every pod gets dear."""
    sizes = dict.fromkeys(shape.pods for shape in shapes)
    found = [Contender(pods) for pods in sizes]
    found += [Contender(shape.pods, shape, MUSTER_SCHEDULER) for shape in shapes]
    if nodes >= SAMPLED_FROM:
        found += [Contender(shape.pods, shape, DEFAULT_SCHEDULER) for shape in shapes]
    return found


def in_turn(entrants: list[Contender], number: int) -> list[Contender]:
    """Round by round in another order, so that what drifts on the machine meets all alike."""
    start = number % len(entrants)
    turned = entrants[start:] + entrants[:start]
    return turned[::-1] if number % 2 else turned


def node_documents(start: int, end: int) -> Iterator[Json]:
    """Nodes number start to end - 1."""
    return (nodes.node(f"node-{number}", NODE) for number in range(start, end))


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """`4x500,100x20`. Raises ScenarioError."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", part.strip())
        if match is None:
            raise ScenarioError(f"shape {part!r}: expected GANGSxPODS, such as 4x500")
        found.append(Shape(int(match[1]), int(match[2])))
    return tuple(found)


def parse_nodes(text: str) -> tuple[int, ...]:
    """`200,1000,5000`, made ascending: nodes are only added. Raises ScenarioError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ScenarioError(f"nodes {text!r}: expected numbers, such as 200,1000")
    return tuple(sorted({int(part) for part in parts}))


def check(nodes_wanted: tuple[int, ...], shapes: tuple[Shape, ...]) -> None:
    """Raises ScenarioError when the pods would not fit: the last Binding would never come."""
    room = min(nodes_wanted) * int(NODE.cpu)
    for shape in shapes:
        if shape.pods > room:
            raise ScenarioError(f"{shape} is {shape.pods} pods, {min(nodes_wanted)} nodes hold {room}")
