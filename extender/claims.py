"""How big gangs get their turn: a claim on the nodes that free soonest.

While a gang has a claim, nothing of lower or equal priority but DaemonSets' pods is let onto its nodes; what runs there
runs to its end. One claim at a time, for a bounded time, then a pause, so that a claim that comes to nothing costs
others little. A reservation asks for it (`spec.claim`); a user's gang gets it when it has waited long enough and nobody
of higher priority or age waits.
"""

from extender.gangs import Gang, State
from extender.ledger import Room
from extender.timers import Timer
from extender.world import World
from kube.objects.node_predicates import constraint_violation
from kube.objects.pod_class import PodClass
from kube.objects.resources import Resources, add_into, fit_count


def held(world: World, gang: Gang) -> bool:
    return gang.key in world.claims


def make(world: World, gang: Gang, now: float) -> bool:
    """Claim nodes for a gang that does not fit now; whether it has a claim afterwards."""
    if gang.key in world.claims:
        return True
    if world.claims or now < world.claim_rest:
        return False
    nodes = _soonest_free(world, gang)
    if nodes is None:
        return False
    world.claims[gang.key] = nodes
    world.counters["claims"] += 1
    world.reports += 1
    world.timers.set(Timer.CLAIM, gang.key, now + world.config.claim_limit)
    return True


def wait_for(world: World, gang: Gang, now: float) -> None:
    """A user's gang is blocked: it may claim once it has waited long enough."""
    if gang.waits_from is None:
        gang.waits_from = now
    if gang.key not in world.claims:
        at = max(gang.waits_from + world.config.claim_after, world.claim_rest, now + world.config.claim_again)
        world.timers.set_earliest(Timer.CLAIM, gang.key, at)


def due(world: World, gang: Gang, now: float) -> None:
    """The claim's time is over, or a gang has waited long enough for one."""
    if gang.key in world.claims:
        drop(world, gang)
        world.claim_rest = now + world.config.claim_pause
        gang.tried_at = -1
        world.touch(gang.key)
    if gang.hub is None and gang.state is State.BLOCKED:
        first = min(
            (each for each in world.gangs.values() if each.hub is None and each.state is State.BLOCKED),
            key=lambda each: (-each.priority, each.waits_from or now, each.key),
        )
        if first is not gang or not make(world, gang, now):
            wait_for(world, gang, now)


def drop(world: World, gang: Gang) -> None:
    """The gang has its room, or has gone."""
    if world.claims.pop(gang.key, None) is not None:
        world.timers.clear(Timer.CLAIM, gang.key)
        world.reports += 1


def _soonest_free(world: World, gang: Gang) -> frozenset[str] | None:
    """Nodes that would hold the whole gang once what may end on them has ended; the least used ones.

    How long pods run is not known: a node in little use needs the fewest ends. None: it would not fit even then.
    """
    chosen: set[str] = set()
    empty: dict[str, Resources] = {}
    for pod_class, count in sorted(_members(gang).items(), key=lambda item: -_weight(item[0])):
        left = count
        rooms = [
            room
            for room in world.ledger.rooms.values()
            if room.node is not None and constraint_violation(pod_class.constraints, room.node) is None
        ]
        for room in sorted(rooms, key=lambda room: (room.name not in chosen, _used_share(room, pod_class), room.name)):
            free = empty.setdefault(room.name, _when_empty(world, room))
            fitting = min(left, fit_count(pod_class.charge, free))
            if fitting:
                add_into(free, pod_class.charge, -fitting)
                chosen.add(room.name)
                left -= fitting
            if not left:
                break
        if left:
            return None
    return frozenset(chosen)


def _members(gang: Gang) -> dict[PodClass, int]:
    wanted: dict[PodClass, int] = {}
    for role in gang.roles.values():
        count = max(role.count, gang.seen(role.name))
        wanted[role.pod_class] = wanted.get(role.pod_class, 0) + count
    return wanted


def _when_empty(world: World, room: Room) -> Resources:
    """What DaemonSets' pods leave: they stay, and come first."""
    free = dict(room.allocatable)
    for uid, charge in room.charges.items():
        facts = world.pods.get(uid)
        if facts is not None and facts.daemon:
            add_into(free, charge.request, -1)
    return free


def _used_share(room: Room, pod_class: PodClass) -> float:
    share = 0.0
    for name, units in pod_class.charge.items():
        total = room.allocatable.get(name, 0)
        if units and total:
            share = max(share, (total - room.free.get(name, 0)) / total)
    return share


def _weight(pod_class: PodClass) -> float:
    devices = sum(units for name, units in pod_class.charge.items() if "/" in name)
    return devices * 1e6 + pod_class.charge.get("cpu", 0)
