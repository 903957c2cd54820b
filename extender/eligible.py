"""Which nodes a class may use at all (static predicates), cached until a node changes in what they read."""

from extender.ledger import Ledger, Room
from kube.objects.node_predicates import constraint_violation
from kube.objects.pod_constraints import NodeConstraints

_LARGEST = 256
"""Sets of constraints remembered; beyond that the memory starts over."""


class Eligible:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._places = -1
        self._rooms: dict[NodeConstraints, list[Room]] = {}

    def __len__(self) -> int:
        return len(self._rooms)

    def rooms(self, constraints: NodeConstraints) -> list[Room]:
        """Rooms whose node admits a pod with these constraints, by name. Not to be changed."""
        if self._places != self._ledger.places or len(self._rooms) > _LARGEST:
            self._rooms.clear()
            self._places = self._ledger.places
        found = self._rooms.get(constraints)
        if found is None:
            found = [
                room
                for _name, room in sorted(self._ledger.rooms.items())
                if room.node is not None and constraint_violation(constraints, room.node) is None
            ]
            self._rooms[constraints] = found
        return found
