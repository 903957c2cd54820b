"""The working copy a plan is made on: free room per node as it is eaten, with undo.

Reads the ledger, never writes it; topology counts are shared with the ledger and put back on `rollback`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from extender.eligible import Eligible
from extender.ledger import Ledger, Room
from kube.objects.node_predicates import NodeView, ports_conflict
from kube.objects.pod_class import PodClass
from kube.objects.pod_constraints import HostPort
from kube.objects.resources import Resources, add_into, fit_count

Take = tuple[Room, PodClass, int]


class Board:
    def __init__(
        self,
        ledger: Ledger,
        eligible: Eligible,
        *,
        free: Mapping[str, Resources] | None = None,
        classes: Iterable[PodClass] = (),
    ) -> None:
        """free: nodes whose room counts otherwise than in the ledger (promises that may be broken, nominations).
        classes: everything that may be placed, so that rules among them are known from the start."""
        self._ledger = ledger
        self._eligible = eligible
        self._free: dict[str, Resources] = {name: dict(units) for name, units in (free or {}).items()}
        self._ports: dict[str, list[HostPort]] = {}
        self._taken: list[Take] = []
        self._groups: dict[int, tuple[list[Room], list[list[Room]]]] = {}
        self._coupled = any(each.couples for each in classes)

    def rooms(self, pod_class: PodClass, avoid: Collection[str], within: Collection[str] | None) -> list[Room]:
        rooms = self._eligible.rooms(pod_class.constraints)
        if avoid or within is not None:
            return [room for room in rooms if room.name not in avoid and (within is None or room.name in within)]
        return rooms

    def groups(self, pod_class: PodClass, rooms: list[Room]) -> list[list[Room]]:
        """The rooms, those that look alike to any class together, each group in the order given."""
        if pod_class.host_ports or self.one_by_one(pod_class):
            return [[room] for room in rooms]
        key = id(rooms)
        known = self._groups.get(key)
        if known is None or known[0] is not rooms:
            by_looks: dict[object, list[Room]] = {}
            for room in rooms:
                by_looks.setdefault(room.alike(), []).append(room)
            known = self._groups[key] = (rooms, list(by_looks.values()))
        free = self._free
        groups: list[list[Room]] = []
        for group in known[1]:
            changed = [room for room in group if room.name in free]
            if changed:
                groups.extend([room] for room in changed)
                unchanged = [room for room in group if room.name not in free]
                if unchanged:
                    groups.append(unchanged)
            else:
                groups.append(group)
        return groups

    def nodes(self) -> Iterator[NodeView]:
        """Every node there is."""
        return (room.node for room in self._ledger.rooms.values() if room.node is not None)

    def free(self, room: Room) -> Resources:
        """Not to be changed."""
        return self._free.get(room.name, room.free)

    def count(self, room: Room, pod_class: PodClass) -> int:
        """How many pods of the class the node takes now, as far as room and ports go."""
        fitting = fit_count(pod_class.charge, self._free.get(room.name, room.free))
        if fitting and pod_class.host_ports:
            taken = [*room.ports(), *self._ports.get(room.name, ())]
            return 0 if ports_conflict(pod_class.host_ports, taken) else 1
        return fitting

    def one_by_one(self, pod_class: PodClass) -> bool:
        """Where one pod went decides where the next may: counting is not enough."""
        return self._ledger.topology.concerns(pod_class) or (self._coupled and pod_class.couples)

    def forbidden(self, room: Room, pod_class: PodClass) -> str | None:
        """The topology rule that keeps one more pod of the class off this node."""
        return self._ledger.topology.reason(pod_class, room.node) if room.node is not None else "node is gone"

    def take(self, room: Room, pod_class: PodClass, count: int) -> None:
        free = self._free.get(room.name)
        if free is None:
            free = self._free[room.name] = dict(room.free)
        add_into(free, pod_class.charge, -count)
        if pod_class.host_ports:
            self._ports.setdefault(room.name, []).extend(pod_class.host_ports)
        if self._coupled and room.node is not None:
            for _ in range(count):
                self._ledger.topology.place(pod_class, room.node)
        self._taken.append((room, pod_class, count))

    def mark(self) -> int:
        return len(self._taken)

    def rollback(self, mark: int = 0) -> None:
        while len(self._taken) > mark:
            room, pod_class, count = self._taken.pop()
            add_into(self._free[room.name], pod_class.charge, count)
            if pod_class.host_ports:
                ports = self._ports[room.name]
                del ports[len(ports) - len(pod_class.host_ports) :]
            if self._coupled and room.node is not None:
                for _ in range(count):
                    self._ledger.topology.remove(pod_class, room.node)

    def taken(self, mark: int) -> list[Take]:
        return self._taken[mark:]
