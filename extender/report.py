"""The content of ClusterCapacity: what the hub decides "does it fit" on."""

from collections.abc import Collection, Iterator

from extender.gangs import State
from extender.world import World
from kube.objects.capacity import CapacityStatus, Included
from kube.objects.node_predicates import NodeView
from kube.objects.resources import Resources, add_into, format_resources
from kube.objects.shapes import node_shapes, telling_label_keys


def capacity(world: World, sequence: int, label_keys: Collection[str]) -> CapacityStatus:
    """label_keys: node labels worth reporting (`label_keys`)."""
    total: Resources = {}
    allocated: Resources = {}
    reserved: Resources = {}
    free: Resources = {}
    usable = 0
    for room in world.ledger.rooms.values():
        if room.node is None:
            continue
        add_into(allocated, room.used)
        add_into(reserved, room.promised)
        if room.node.ready and not room.node.unschedulable:
            usable += 1
            add_into(total, room.allocatable)
            for name, units in room.free.items():
                if units > 0:
                    free[name] = free.get(name, 0) + units
    shapes, left_out = node_shapes(
        _free_nodes(world),
        label_keys,
        limit=world.config.max_shapes,
    )
    return CapacityStatus(
        total=format_resources(total),
        allocated=format_resources(_positive(allocated)),
        reserved=format_resources(_positive(reserved)),
        free=format_resources(free),
        nodes=usable,
        shapes=shapes,
        shapes_left_out=left_out,
        includes=_includes(world),
        scheduler_name=world.config.scheduler_name,
        sequence=sequence,
    )


def label_keys(world: World) -> frozenset[str]:
    """Changes only when a node does (`Ledger.places`)."""
    return telling_label_keys(room.node for room in world.ledger.rooms.values() if room.node is not None)


def _free_nodes(world: World) -> Iterator[tuple[NodeView, Resources]]:
    """Nominated pods count as taken: their victims are already ending."""
    claimed = {node for nodes in world.claims.values() for node in nodes}
    for room in world.ledger.rooms.values():
        if room.node is None or room.name in claimed:
            continue
        free = room.free
        if room.nominations:
            free = dict(free)
            for nomination in room.nominations.values():
                add_into(free, nomination.pod_class.charge, -1)
        yield room.node, free


def _includes(world: World) -> list[Included]:
    """Reservations whose room is counted as taken: by slots, or by their pods."""
    included = []
    for key, held in world.reservations.items():
        gang = world.gangs.get(key)
        if gang is None:
            continue
        holds = bool(gang.slots) or gang.present > 0 or gang.posting > 0
        if holds or gang.state in (State.LANDED, State.HEALING, State.EVICTING):
            included.append(Included(held.reservation.spec.job_id, held.reservation.spec.epoch))
    return sorted(included, key=lambda each: (each.job_id, each.epoch))


def _positive(resources: Resources) -> Resources:
    return {name: units for name, units in resources.items() if units > 0}
