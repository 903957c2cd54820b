"""Promises that may be broken: who may take the room of a gang's uncommitted slots, and whose gang it costs.

A gang of higher priority, a plain pod of higher priority, and a DaemonSet's pod (it has no other node to go to) may.
Slots of a commit under way never break.
"""

from collections.abc import Callable, Iterable

from extender.gangs import Gang
from extender.ledger import Room, Slot
from extender.plan_question import Question
from extender.planner import Plan, plan
from extender.pod_facts import PodFacts
from extender.world import World
from kube.objects.node_predicates import ports_conflict
from kube.objects.pod_class import PodClass
from kube.objects.resources import Resources, add_into, fits

TAKEN = "the room planned for this pod went to one of higher priority"


def plan_over_lower_promises(world: World, gang: Gang, question: Question) -> Plan | None:
    """A plan that takes uncommitted slots of gangs of lower priority; those slots are withdrawn."""
    free = {name: dict(units) for name, units in question.free.items()}
    found = False
    for slot in world.ledger.slots.values():
        if slot.priority < gang.priority and not slot.committing and slot.gang != gang.key:
            found = True
            room = world.ledger.rooms[slot.node]
            add_into(free.setdefault(room.name, dict(room.free)), slot.pod_class.charge)
    if not found:
        return None
    result = plan(
        Question(question.demands, question.min_total, question.prefer_topology_key, free),
        world.ledger,
        world.eligible,
    )
    if not isinstance(result, Plan):
        return None
    needed: dict[str, Resources] = {}
    for index, node, count in result.places:
        add_into(needed.setdefault(node, {}), question.demands[index].pod_class.charge, count)
    for node, request in needed.items():
        _clear(world, world.ledger.rooms[node], request, lambda slot: slot.priority < gang.priority)
    return result


def may_break(facts: PodFacts, slot: Slot) -> bool:
    return not slot.committing and (facts.daemon or facts.priority > slot.priority)


def cheapest_node(world: World, facts: PodFacts, offered: Iterable[str]) -> str | None:
    """The offered node where room for the pod can be made at the least cost for gangs; None if there is none."""
    best: tuple[tuple[int, int, int, int], str] | None = None
    for name in offered:
        room = world.ledger.rooms.get(name)
        if room is None or room.node is None or not room.slots:
            continue
        broken = _to_break(room, facts.pod_class, lambda slot: may_break(facts, slot))
        if broken is None:
            continue
        gangs = {slot.gang: world.gangs[slot.gang] for slot in broken}
        cost = (
            sum(1 for gang in gangs.values() for member in gang.members.values() if member.call is not None),
            sum(1 for gang in gangs.values() if gang.members),
            len(broken),
            max((gang.priority for gang in gangs.values()), default=0),
        )
        if best is None or (cost, name) < best:
            best = (cost, name)
    return best[1] if best is not None else None


def make_room(world: World, facts: PodFacts, node: str) -> bool:
    """Withdraw the slots a pod may break on a node, if it fits then; whether it fits now."""
    room = world.ledger.rooms.get(node)
    if room is None or room.node is None:
        return False
    broken = _to_break(room, facts.pod_class, lambda slot: may_break(facts, slot))
    if broken is None:
        return False
    _break(world, broken)
    return True


def _to_break(room: Room, pod_class: PodClass, breakable: Callable[[Slot], bool]) -> list[Slot] | None:
    """The fewest and least important slots without which the pod fits; None if it does not fit even then."""
    free = dict(room.free)
    broken: list[Slot] = []
    candidates = sorted((slot for slot in room.slots.values() if breakable(slot)), key=lambda s: (s.priority, -s.id))
    while not fits(pod_class.charge, free):
        if not candidates:
            return None
        slot = candidates.pop(0)
        broken.append(slot)
        add_into(free, slot.pod_class.charge)
    if pod_class.host_ports:
        staying = [
            *(port for charge in room.charges.values() for port in charge.pod_class.host_ports),
            *(port for slot in room.slots.values() if not breakable(slot) for port in slot.pod_class.host_ports),
        ]
        if ports_conflict(pod_class.host_ports, staying):
            return None
        broken += [slot for slot in candidates if ports_conflict(pod_class.host_ports, slot.pod_class.host_ports)]
    return broken


def _clear(world: World, room: Room, request: Resources, breakable: Callable[[Slot], bool]) -> None:
    candidates = sorted((slot for slot in room.slots.values() if breakable(slot)), key=lambda s: (s.priority, -s.id))
    while candidates and not fits(request, room.free):
        slot = candidates.pop(0)
        if not slot.committing:
            _break(world, [slot])


def _break(world: World, slots: list[Slot]) -> None:
    for slot in slots:
        world.break_slot(slot, TAKEN)
