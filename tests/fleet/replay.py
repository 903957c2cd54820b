"""The audit log played again: what every node had given away at every moment, by the API server's own record."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hack.fleet.audit import AuditEvent
from tests.fleet.stories import Json, requested_cpu, seconds_between


@dataclass(frozen=True, slots=True)
class Overcommit:
    node: str
    when: str
    """RFC 3339."""
    given: int
    size: int
    pod: str
    """Whose Binding made it too much."""


def bindings(events: Iterable[AuditEvent]) -> list[AuditEvent]:
    """The Bindings that took effect, in the order of their answers.

    201, and for a pod without one a 504: its sender was killed or cut off meanwhile, but the API server had stored it.
    """
    found = [e for e in events if e.target == "pods/binding"]
    certain = [e for e in found if e.code == 201]
    known = {(e.namespace, e.name) for e in certain}
    uncertain = {(e.namespace, e.name): e for e in found if e.code == 504 and (e.namespace, e.name) not in known}
    return sorted([*certain, *uncertain.values()], key=lambda e: e.completed)


def overcommits(events: Iterable[AuditEvent], cpus: Mapping[str, int], sizes: Mapping[str, int]) -> list[Overcommit]:
    """Moments at which a node had given more whole CPUs than it has.

    events: of one cluster, from before the first of the pods. cpus: pod as NAMESPACE/NAME -> CPUs; each name is used
    once, pods end only by deletion without grace, and others do not count. sizes: node -> CPUs.

    A Binding counts from when its answer was sent, a deletion from when its request came: what is found is certain.
    """
    events = list(events)
    moments = [(e.completed, 1, f"{e.namespace}/{e.name}", e.node) for e in bindings(events)]
    moments += [
        (e.time, 0, f"{e.namespace}/{e.name}", "")
        for e in events
        if e.target == "pods" and e.verb == "delete" and e.code == 200
    ]
    given: Counter[str] = Counter()
    where: dict[str, str] = {}
    found = []
    for when, begins, pod, node in sorted(moments):
        if pod not in cpus:
            continue
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


def longest_gap(events: Iterable[AuditEvent]) -> float:
    """Seconds from a gang's first Binding to its last, the longest; gang: the pods' name up to the last dash."""
    found: dict[str, list[AuditEvent]] = {}
    for event in events:
        found.setdefault(event.name.rpartition("-")[0], []).append(event)
    return max((seconds_between(of_gang[0], of_gang[-1]) for of_gang in found.values()), default=0.0)
