"""The audit log played again: what every node had given away at every moment, by the API server's own record."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hack.fleet.audit import AuditEvent
from tests.fleet.stories import Json, requested_cpu


@dataclass(frozen=True, slots=True)
class Overcommit:
    node: str
    when: str
    """RFC 3339."""
    given: int
    size: int
    pod: str
    """Whose Binding made it too much."""


def overcommits(events: Iterable[AuditEvent], cpus: Mapping[str, int], sizes: Mapping[str, int]) -> list[Overcommit]:
    """Moments at which a node had given more whole CPUs than it has.

    events: of one cluster, from before the first of the pods. cpus: pod as NAMESPACE/NAME -> CPUs; each name is used
    once, pods end only by deletion without grace, and others do not count. sizes: node -> CPUs.

    A Binding counts from when its answer was sent, a deletion from when its request came: what is found is certain.
    """
    moments = []
    for event in events:
        pod = f"{event.namespace}/{event.name}"
        if event.resource != "pods" or pod not in cpus:
            continue
        if event.target == "pods/binding" and event.code == 201:
            moments.append((event.completed, 1, pod, event.node))
        elif event.target == "pods" and event.verb == "delete" and event.code == 200:
            moments.append((event.time, 0, pod, ""))
    given: Counter[str] = Counter()
    where: dict[str, str] = {}
    found = []
    for when, begins, pod, node in sorted(moments):
        if begins:
            where[pod] = node
            given[node] += cpus[pod]
            if given[node] > sizes[node]:
                found.append(Overcommit(node, when, given[node], sizes[node], pod))
        elif pod in where:
            given[where.pop(pod)] -= cpus[pod]
    return found


def cpus_of(pods: Iterable[Json]) -> dict[str, int]:
    """For `overcommits`: of pods as they were posted or read."""
    return {f"{p['metadata']['namespace']}/{p['metadata']['name']}": requested_cpu(p) for p in pods}


def gaps(events: Iterable[AuditEvent], sizes: Mapping[str, int]) -> dict[str, list[AuditEvent]]:
    """Gang -> its successful Bindings in order; gang: the pods' name up to the last dash. sizes: gang -> members."""
    found: dict[str, list[AuditEvent]] = {gang: [] for gang in sizes}
    for event in sorted(events, key=lambda e: e.completed):
        gang = event.name.rpartition("-")[0]
        if gang in found and event.target == "pods/binding" and event.code == 201:
            found[gang].append(event)
    return found
