"""The only holder of charges and slots: what every node has given away, and to whom.

A *charge* belongs to one pod (by UID, never by name): bound, being bound, or answered and on its way. A *slot* is room
promised to one future member of a gang. `filter`, `bind`, plans and reports all read `Room.free`, which is allocatable
minus every charge and every slot; nothing else keeps a count. Every method is idempotent per UID or slot id.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

import msgspec

from kube.objects.node_predicates import NodeView, constraint_violation, ports_conflict
from kube.objects.pod_class import PodClass
from kube.objects.pod_constraints import HostPort
from kube.objects.resources import Resources, add_into, fits
from kube.objects.topology import TopologyState


class Holder(StrEnum):
    """Why a charge stands, from weak to strong; a charge never gets weaker by a late message."""

    ANSWERED = "answered"
    """`filter` gave this one node to a pod that may break promises; ends by its bind or a short time."""
    POSTING = "posting"
    """Its Binding is being sent, or was sent without an answer yet."""
    POSTED = "posted"
    """The API server confirmed the Binding; the watch has not shown it yet."""
    BOUND = "bound"
    """The watch shows spec.nodeName."""


_STRENGTH = {holder: rank for rank, holder in enumerate(Holder)}
_UNCONFIRMED = frozenset({Holder.ANSWERED, Holder.POSTING})


class Charge(msgspec.Struct):
    uid: str
    node: str
    pod_class: PodClass
    request: Resources
    """With "pods": 1; that of the class unless the pod was resized. Not to be changed in place."""
    labels: Mapping[str, str]
    """All of the pod's: rules of other pods look at them."""
    holder: Holder
    gang: str = ""
    terminating: bool = False


class Slot(msgspec.Struct):
    id: int
    gang: str
    role: str
    node: str
    pod_class: PodClass
    priority: int
    uid: str = ""
    """The member it was given to; "" while anyone of the class may have it."""
    committing: bool = False
    """Part of a commit under way: nobody may take it any more."""


class Nomination(msgspec.Struct, frozen=True):
    """A pod that preempted victims on a node and waits for them to end (status.nominatedNodeName)."""

    uid: str
    node: str
    pod_class: PodClass
    priority: int


class Room:
    """One node, known from the watch (`node`) or only by what is charged on it."""

    __slots__ = (
        "allocatable",
        "charges",
        "free",
        "likeness",
        "name",
        "node",
        "nominations",
        "promised",
        "slots",
        "used",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.node: NodeView | None = None
        self.allocatable: Resources = {}
        self.free: Resources = {}
        """allocatable - used - promised; may be negative (kubelet shrank the node)."""
        self.likeness: tuple[tuple[str, int], ...] | None = None
        """`free` as a hashable value, made when asked for."""
        self.used: Resources = {}
        self.promised: Resources = {}
        self.charges: dict[str, Charge] = {}
        self.slots: dict[int, Slot] = {}
        self.nominations: dict[str, Nomination] = {}

    def alike(self) -> tuple[tuple[str, int], ...]:
        """Equal for rooms with equal `free`."""
        if self.likeness is None:
            self.likeness = tuple(sorted(self.free.items()))
        return self.likeness

    def use(self, request: Resources, times: int = 1) -> None:
        add_into(self.used, request, times)
        add_into(self.free, request, -times)
        self.likeness = None

    def promise(self, request: Resources, times: int = 1) -> None:
        add_into(self.promised, request, times)
        add_into(self.free, request, -times)
        self.likeness = None

    def refit(self) -> None:
        """`allocatable` has changed."""
        self.free = dict(self.allocatable)
        add_into(self.free, self.used, -1)
        add_into(self.free, self.promised, -1)
        self.likeness = None

    def free_without(self, given_back: Iterator[Resources]) -> Resources:
        """`free` if these requests were not there."""
        free = dict(self.free)
        for request in given_back:
            add_into(free, request)
        return free

    def ports(self) -> Iterator[HostPort]:
        for charge in self.charges.values():
            yield from charge.pod_class.host_ports
        for slot in self.slots.values():
            yield from slot.pod_class.host_ports

    @property
    def overcommitted(self) -> bool:
        return any(units < 0 for units in self.free.values())

    @property
    def overfull(self) -> bool:
        """Its pods alone are more than it has, promises aside."""
        return any(units > self.allocatable.get(name, 0) for name, units in self.used.items())


class Ledger:
    def __init__(self) -> None:
        self.rooms: dict[str, Room] = {}
        self.charges: dict[str, Charge] = {}
        self.slots: dict[int, Slot] = {}
        self.nominations: dict[str, Nomination] = {}
        self.kept_nodes: dict[str, int] = {}
        """Node -> slots and unconfirmed charges on it: room that kube-scheduler may not know to be taken."""
        self.topology = TopologyState()
        self.revision = 0
        """Raised by every change."""
        self.places = 0
        """Raised when a node comes, goes, or changes in what static predicates read."""
        self.gains = 0
        """Raised whenever room may have become free: a plan that failed needs no second try before that."""
        self.on_gain: Callable[[str], None] = lambda _node: None
        """Told the node on which room became free."""
        self._next_slot = 0

    # --- nodes ---------------------------------------------------------------------------------------------------

    def set_node(self, view: NodeView) -> bool:
        """Whether anything that placement looks at has changed; a heartbeat changes nothing."""
        room = self._room(view.name)
        former = room.node
        if former is not None and former.same_place(view) and former.allocatable == view.allocatable:
            return False
        room.node = view
        self.topology.set_node(view)
        if former is None or not former.same_place(view):
            self.places += 1
        if former is None or former.allocatable != view.allocatable:
            room.allocatable = view.allocatable
            room.refit()
        self._gained(room.name)
        return True

    def remove_node(self, name: str) -> None:
        """The node is gone; what is charged there stays until its pods go."""
        room = self.rooms.get(name)
        if room is None or room.node is None:
            return
        room.node = None
        self.topology.forget_node(name)
        self.places += 1
        room.allocatable = {}
        room.refit()
        self.revision += 1
        self._forget_if_empty(room)

    # --- charges -------------------------------------------------------------------------------------------------

    def charge(self, charge: Charge) -> None:
        """Charge a pod, or strengthen or move its charge. A weaker holder on the same node changes nothing but the
        request (in-place resize)."""
        present = self.charges.get(charge.uid)
        if present is not None:
            if present.node == charge.node:
                if _STRENGTH[charge.holder] > _STRENGTH[present.holder]:
                    self.strengthen(charge.uid, charge.holder)
                if charge.gang:
                    present.gang = charge.gang
                if charge.request != present.request:
                    self._resize(present, charge.request)
                if charge.terminating and not present.terminating:
                    view = _view(self.rooms[present.node])
                    self.topology.remove(present.pod_class, view, present.labels)
                    present.terminating = True
                    self.topology.place(present.pod_class, view, present.labels, terminating=True)
                return
            if _STRENGTH[charge.holder] < _STRENGTH[present.holder]:
                return
            self.release(charge.uid)
        room = self._room(charge.node)
        self.charges[charge.uid] = charge
        room.charges[charge.uid] = charge
        self.topology.place(charge.pod_class, _view(room), charge.labels, terminating=charge.terminating)
        room.use(charge.request)
        if charge.holder in _UNCONFIRMED:
            self._keep(room.name, 1)
        self.revision += 1

    def strengthen(self, uid: str, holder: Holder) -> None:
        """The pod has come further; never back."""
        charge = self.charges.get(uid)
        if charge is None or _STRENGTH[holder] <= _STRENGTH[charge.holder]:
            return
        if charge.holder in _UNCONFIRMED and holder not in _UNCONFIRMED:
            self._keep(charge.node, -1)
        charge.holder = holder
        self.revision += 1

    def release(self, uid: str) -> None:
        charge = self.charges.pop(uid, None)
        if charge is None:
            return
        room = self.rooms[charge.node]
        del room.charges[uid]
        if charge.holder in _UNCONFIRMED:
            self._keep(room.name, -1)
        self.topology.remove(charge.pod_class, _view(room), charge.labels, terminating=charge.terminating)
        room.use(charge.request, -1)
        self._gained(room.name)
        self._forget_if_empty(room)

    def _resize(self, charge: Charge, request: Resources) -> None:
        room = self.rooms[charge.node]
        room.use(charge.request, -1)
        charge.request = request
        room.use(request)
        self._gained(room.name)

    # --- slots ---------------------------------------------------------------------------------------------------

    def promise(self, gang: str, role: str, pod_class: PodClass, node: str, priority: int, uid: str = "") -> Slot:
        self._next_slot += 1
        slot = Slot(self._next_slot, gang, role, node, pod_class, priority, uid)
        room = self._room(node)
        self.slots[slot.id] = slot
        room.slots[slot.id] = slot
        self.topology.place(pod_class, _view(room))
        room.promise(pod_class.charge)
        self._keep(node, 1)
        self.revision += 1
        return slot

    def withdraw(self, slot_id: int) -> None:
        slot = self.slots.pop(slot_id, None)
        if slot is None:
            return
        room = self.rooms[slot.node]
        del room.slots[slot_id]
        self._keep(room.name, -1)
        self.topology.remove(slot.pod_class, _view(room))
        room.promise(slot.pod_class.charge, -1)
        self._gained(room.name)
        self._forget_if_empty(room)

    def reshape(self, slot: Slot, pod_class: PodClass) -> bool:
        """Let the slot serve a pod of another class on the same node, if that fits there; whether it does."""
        room = self.rooms[slot.node]
        view = room.node
        if view is None or constraint_violation(pod_class.constraints, view) is not None:
            return False
        room.promise(slot.pod_class.charge, -1)
        self.topology.remove(slot.pod_class, view)
        del room.slots[slot.id]
        fitting = self.allowed_beside(pod_class, slot.node)
        if fitting:
            slot.pod_class = pod_class
        room.slots[slot.id] = slot
        self.topology.place(slot.pod_class, view)
        room.promise(slot.pod_class.charge)
        if fitting:
            self._gained(room.name)
        return fitting

    def convert(self, slot_id: int, charge: Charge) -> None:
        """A slot becomes the charge of the member that had it: nothing is freed in between."""
        slot = self.slots.pop(slot_id)
        room = self.rooms[slot.node]
        del room.slots[slot_id]
        self._keep(room.name, -1)
        room.promise(slot.pod_class.charge, -1)
        self.topology.remove(slot.pod_class, _view(room))
        self.charge(charge)

    def move(self, slot: Slot, node: str) -> None:
        """The caller has checked that it fits there."""
        if slot.node == node:
            return
        left = self.rooms[slot.node]
        del left.slots[slot.id]
        self.topology.remove(slot.pod_class, _view(left))
        left.promise(slot.pod_class.charge, -1)
        self._keep(left.name, -1)
        self._keep(node, 1)
        slot.node = node
        entered = self._room(node)
        entered.slots[slot.id] = slot
        self.topology.place(slot.pod_class, _view(entered))
        entered.promise(slot.pod_class.charge)
        self._gained(left.name)
        self._forget_if_empty(left)

    # --- nominations ---------------------------------------------------------------------------------------------

    def nominate(self, nomination: Nomination) -> None:
        if self.nominations.get(nomination.uid) == nomination:
            return
        self.withdraw_nomination(nomination.uid)
        self.nominations[nomination.uid] = nomination
        self._room(nomination.node).nominations[nomination.uid] = nomination
        self.revision += 1

    def withdraw_nomination(self, uid: str) -> None:
        nomination = self.nominations.pop(uid, None)
        if nomination is None:
            return
        room = self.rooms[nomination.node]
        del room.nominations[uid]
        self._gained(room.name)
        self._forget_if_empty(room)

    # --- questions -----------------------------------------------------------------------------------------------

    def fits_beside(self, pod_class: PodClass, node: str) -> bool:
        """Whether a pod of the class fits on the node beside every charge and every slot, ports included."""
        room = self.rooms.get(node)
        if room is None or room.node is None or not fits(pod_class.charge, room.free):
            return False
        return not (pod_class.host_ports and ports_conflict(pod_class.host_ports, room.ports()))

    def allowed_beside(self, pod_class: PodClass, node: str) -> bool:
        """`fits_beside`, and no topology rule is against it."""
        if not self.fits_beside(pod_class, node):
            return False
        view = self.rooms[node].node
        return view is not None and self.topology.allows(pod_class, view)

    # --- inside --------------------------------------------------------------------------------------------------

    def _room(self, name: str) -> Room:
        room = self.rooms.get(name)
        if room is None:
            room = self.rooms[name] = Room(name)
        return room

    def _keep(self, node: str, step: int) -> None:
        count = self.kept_nodes.get(node, 0) + step
        if count:
            self.kept_nodes[node] = count
        else:
            del self.kept_nodes[node]

    def _gained(self, node: str) -> None:
        self.revision += 1
        self.gains += 1
        self.on_gain(node)

    def _forget_if_empty(self, room: Room) -> None:
        if room.node is None and not (room.charges or room.slots or room.nominations):
            self.rooms.pop(room.name, None)


def _view(room: Room) -> NodeView:
    """Topology only asks for the name of a node that is gone or was never seen."""
    return room.node or NodeView(room.name, {}, (), unschedulable=False, ready=False, allocatable={})
