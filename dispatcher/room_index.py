"""Which waiting classes a member's capacity report can help, found without looking at the others.

A gang that did not fit can fit after a report only if (1) some kind of node (same labels and taints) there now takes
more pods of its hardest role than before, and (2) there are places enough for that role's minimum in all. Both are
asked once per distinct pod vector, however many classes wait for it.
"""

from bisect import bisect_right, insort
from collections.abc import Hashable, Iterable, Mapping, Sequence

import msgspec

from kube.objects.binding import Component
from kube.objects.capacity import NodeShape
from kube.objects.resources import Resources, fit_count, parse_resources

Vector = tuple[tuple[str, int], ...]
"""Request of one pod, "pods" included, sorted."""
Places = dict[Hashable, int]
"""kind of node -> how many pods of a vector its nodes take."""


class Need(msgspec.Struct, frozen=True):
    vector: Vector
    count: int


def hardest(components: Iterable[Component], short: str = "") -> Need:
    """The role whose places decide: the one that asks for most of what was `short`, else the most numerous."""
    best: tuple[int, int, Need] | None = None
    for component in components:
        request = parse_resources(component.request)
        need = Need(tuple(sorted({**request, "pods": 1}.items())), component.min_replicas)
        rank = (request.get(short, 0) if need.count else -1, need.count)
        if best is None or rank > best[:2]:
            best = (*rank, need)
    return best[2] if best else Need((("pods", 1),), 0)


class _Shape(msgspec.Struct, frozen=True):
    kind: Hashable
    nodes: int
    free: Resources


class RoomIndex:
    """One member's waiting classes. Mutable, owned by one loop."""

    def __init__(self) -> None:
        self._shapes: list[_Shape] | None = None
        self._most: Resources = {}
        """Per resource, the most that any one node has free."""
        self._places: dict[Vector, Places] = {}
        self._waiting: dict[Vector, list[tuple[int, Hashable]]] = {}
        """vector -> (count, class), sorted by count."""
        self._needs: dict[Hashable, Need] = {}

    def park(self, key: Hashable, need: Need) -> None:
        """`key` orders like its siblings (a tuple of plain values)."""
        self.discard(key)
        self._needs[key] = need
        insort(self._waiting.setdefault(need.vector, []), (need.count, key), key=_count)
        if need.vector not in self._places and self._shapes is not None:
            self._places[need.vector] = self._places_for(need.vector)

    def discard(self, key: Hashable) -> None:
        need = self._needs.pop(key, None)
        if need is None:
            return
        waiting = self._waiting[need.vector]
        waiting.remove((need.count, key))
        if not waiting:
            del self._waiting[need.vector]
            self._places.pop(need.vector, None)

    def report(self, shapes: Sequence[NodeShape]) -> list[Hashable]:
        """Classes that this report can help and the one before could not."""
        known = self._shapes is not None
        self._shapes = [
            _Shape((tuple(sorted(shape.labels.items())), tuple(shape.taints)), shape.nodes, parse_resources(shape.free))
            for shape in shapes
        ]
        self._most = {}
        for shape in self._shapes:
            for resource, units in shape.free.items():
                if units > self._most.get(resource, 0):
                    self._most[resource] = units
        helped: list[Hashable] = []
        for vector in self._waiting:
            before, now = self._places.get(vector, {}), self._places_for(vector)
            self._places[vector] = now
            if not known or any(count > before.get(kind, 0) for kind, count in now.items()):
                helped += self._up_to(vector, sum(now.values()))
        return helped

    def returned(self) -> list[Hashable]:
        """Classes that room given back beside the report (a promise that ended) can help."""
        helped: list[Hashable] = []
        for vector in self._waiting:
            helped += self._up_to(vector, sum(self._places.get(vector, {}).values()))
        return helped

    def everything(self) -> list[Hashable]:
        return list(self._needs)

    def _up_to(self, vector: Vector, places: int) -> list[Hashable]:
        waiting = self._waiting[vector]
        return [key for _, key in waiting[: bisect_right(waiting, places, key=_count)]]

    def _places_for(self, vector: Vector) -> Places:
        need: Mapping[str, int] = dict(vector)
        if any(units > self._most.get(resource, 0) for resource, units in vector if units > 0):
            return {}
        places: Places = {}
        for shape in self._shapes or ():
            count = fit_count(need, shape.free) * shape.nodes
            if count:
                places[shape.kind] = places.get(shape.kind, 0) + count
        return places


def _count(entry: tuple[int, Hashable]) -> int:
    return entry[0]
