"""Room for a gang: what it still needs, a plan for that, slots kept or given back. Nothing is bound here."""

from dataclasses import dataclass

from extender import breaking, namespace_quota
from extender.gangs import Gang, Member, Role, Standing
from extender.ledger import Slot
from extender.plan_question import Demand, Question
from extender.planner import Places, fits_placed, plan
from extender.shortfall import Shortfall
from extender.world import World
from kube.objects.node_predicates import constraint_violation
from kube.objects.pod_class import PodClass
from kube.objects.resources import Resources, add_into

PREFER_TOPOLOGY = "muster.dev/prefer-topology-key"
"""Annotation on a PodGroup: node label whose one value all members should share, if that is possible."""
NODE_LOST = "the node planned for this pod can't take it any more"


@dataclass(slots=True)
class Need:
    """Members of one role and class that have neither slot nor charge."""

    role: str
    pod_class: PodClass
    count: int
    required: int
    unseen: int
    """How many of `count` have no pod yet."""


def unseen_of(gang: Gang, role: Role, *, standins: bool) -> int:
    """Members of the role that should exist and do not yet."""
    if not standins or gang.ended_ok:
        return 0
    if gang.hub is not None:
        return max(0, role.count - gang.seen(role.name))
    return max(0, gang.min_member - gang.seen()) if role.name == gang.standin_role else 0


def may_stand_in(gang: Gang, now: float) -> bool:
    """Room may be held for members that do not exist yet (again)."""
    return gang.standins_until is not None and now < gang.standins_until


def settled(gang: Gang, *, standins: bool) -> bool:
    """Nothing is missing and nothing is kept in vain: no need to compare member by member. O(roles)."""
    return not gang.stale and all(
        gang.uncovered.get(role.name, 0) + unseen_of(gang, role, standins=standins) == len(gang.free.get(role.name, ()))
        for role in gang.roles.values()
    )


def cover(world: World, gang: Gang, now: float, *, standins: bool) -> Shortfall | None:
    """Slots for every missing member (and stand-ins for unseen ones), keeping those that stand.

    None: the minimum is covered. A Shortfall: it is not, and every slot without a held call was given back.
    """
    gang.stale = False
    shortfall = _cover(world, gang, now, standins=standins)
    if shortfall is None:
        return None
    loose = [slot for slot in world.slots_of(gang) if _loose(gang, slot)]
    if loose:
        for slot in loose:
            world.withdraw(gang, slot)
        shortfall = _cover(world, gang, now, standins=standins)
        if shortfall is None:
            world.counters["replans"] += 1
            return None
        for slot in world.slots_of(gang):
            if _loose(gang, slot):
                world.withdraw(gang, slot)
    return shortfall


def lacking(world: World, gang: Gang, now: float) -> Shortfall | None:
    """Why a gang that has no slots does not fit now; None if it does. Nothing is promised."""
    needs, minimum = _needs(gang, standins=False)
    result = plan(_question(world, gang, needs, minimum, now), world.ledger, world.eligible)
    return result if isinstance(result, Shortfall) else None


def cover_as_recorded(world: World, gang: Gang, recorded: list[tuple[str, str, int]], now: float) -> bool:
    """Slots exactly where a former process had promised them ((role, node, count)), if they all still work."""
    needs, _ = _needs(gang, standins=True)
    by_role: dict[str, list[Need]] = {}
    for need in needs:
        by_role.setdefault(need.role, []).append(need)
    if any(len(of_role) > 1 for of_role in by_role.values()):
        return False
    places: Places = []
    for role, node, count in recorded:
        if role in by_role:
            places.append((needs.index(by_role[role][0]), node, count))
    totals = [0] * len(needs)
    for index, _, count in places:
        totals[index] += count
    if totals != [need.count for need in needs]:
        return False
    question = _question(world, gang, needs, 0, now)
    if not fits_placed(question, places, world.ledger, world.eligible):
        return False
    gang.stale = False
    _promise(world, gang, question, places)
    return True


def drop_unusable(world: World, gang: Gang) -> None:
    """Break promises on nodes that are gone, closed to their class, or overfull (there the youngest first)."""
    for slot in reversed(world.slots_of(gang)):
        room = world.ledger.rooms[slot.node]
        if room.node is None or constraint_violation(slot.pod_class.constraints, room.node) is not None:
            broken = True
        else:
            broken = any(units < 0 and slot.pod_class.charge.get(name) for name, units in room.free.items())
        if broken:
            world.break_slot(slot, NODE_LOST)


def _cover(world: World, gang: Gang, now: float, *, standins: bool) -> Shortfall | None:
    needs, minimum = _needs(gang, standins=standins)
    minimum = _use_free_slots(world, gang, needs, minimum)
    needs = [need for need in needs if need.count]
    if not needs:
        return None if minimum == 0 else Shortfall(0, minimum, (("pods do not exist yet", minimum),))
    if gang.hub is not None:
        unseen = [(need.pod_class.charge, need.unseen) for need in needs if need.unseen]
        short = namespace_quota.lacking(world, gang.namespace, unseen, besides=gang.key) if unseen else ""
        if short:
            wanted = sum(need.count for need in needs)
            return Shortfall(0, wanted, ((short, wanted),))
    question = _question(world, gang, needs, minimum, now)
    result = plan(question, world.ledger, world.eligible)
    if isinstance(result, Shortfall):
        broken = breaking.plan_over_lower_promises(world, gang, question)
        if broken is None:
            return result
        result = broken
    _promise(world, gang, question, result.places)
    return None


def _needs(gang: Gang, *, standins: bool) -> tuple[list[Need], int]:
    """What has neither a slot nor a charge, and how many of that at least for the gang's minimum."""
    needs: list[Need] = []
    have = 0
    for role in gang.roles.values():
        by_class: dict[PodClass, int] = {}
        unseen = unseen_of(gang, role, standins=standins)
        if unseen:
            by_class[role.pod_class] = unseen
        if gang.uncovered.get(role.name, 0):
            for member in gang.members.values():
                if member.role == role.name and _uncovered(member):
                    by_class[member.pod_class] = by_class.get(member.pod_class, 0) + 1
        role_has = gang.seen(role.name) - gang.uncovered.get(role.name, 0)
        have += role_has
        required = max(0, role.min_count - role_has)
        for pod_class, count in by_class.items():
            share = min(count, required)
            required -= share
            needs.append(Need(role.name, pod_class, count, share, unseen if pod_class is role.pod_class else 0))
    return needs, max(0, max(1, gang.min_member) - have)


def _uncovered(member: Member) -> bool:
    return member.standing in (Standing.MISSING, Standing.WAITING) and not member.slot and not member.charged


def _use_free_slots(world: World, gang: Gang, needs: list[Need], minimum: int) -> int:
    """Count slots nobody has against the needs; those that serve no need are given back."""
    for slot_id in [slot_id for ids in gang.free.values() for slot_id in ids]:
        slot = world.ledger.slots[slot_id]
        need = next((n for n in needs if n.count and n.role == slot.role and n.pod_class is slot.pod_class), None)
        if need is None:
            need = next((n for n in needs if n.count and n.role == slot.role), None)
            if need is None or not world.ledger.reshape(slot, need.pod_class):
                world.withdraw(gang, slot)
                continue
        need.count -= 1
        need.required = max(0, need.required - 1)
        need.unseen = min(need.unseen, need.count)
        minimum = max(0, minimum - 1)
    return minimum


def _question(world: World, gang: Gang, needs: list[Need], minimum: int, now: float) -> Question:
    claimed = _closed_by_claims(world, gang)
    gang.avoid = {place: until for place, until in gang.avoid.items() if until > now}
    return Question(
        tuple(
            Demand(
                need.role,
                need.pod_class,
                need.required,
                need.count,
                frozenset(claimed | {node for role, node in gang.avoid if role == need.role}),
            )
            for need in needs
        ),
        min_total=minimum,
        prefer_topology_key=gang.prefer_topology_key,
        free=_beside_nominations(world, gang),
    )


def _promise(world: World, gang: Gang, question: Question, places: Places) -> None:
    for index, node, count in places:
        demand = question.demands[index]
        for _ in range(count):
            world.promise(gang, demand.role, demand.pod_class, node)


def _beside_nominations(world: World, gang: Gang) -> dict[str, Resources]:
    """Nodes where pods of at least the gang's priority wait for their victims: their room counts as taken."""
    free: dict[str, Resources] = {}
    for nomination in world.ledger.nominations.values():
        if nomination.priority >= gang.priority and nomination.uid not in gang.members:
            room = world.ledger.rooms[nomination.node]
            add_into(free.setdefault(room.name, dict(room.free)), nomination.pod_class.charge, -1)
    return free


def _closed_by_claims(world: World, gang: Gang) -> set[str]:
    closed: set[str] = set()
    for key, nodes in world.claims.items():
        claimant = world.gangs.get(key)
        if key != gang.key and claimant is not None and claimant.priority >= gang.priority:
            closed |= nodes
    return closed


def _loose(gang: Gang, slot: Slot) -> bool:
    """No held call depends on it."""
    member = gang.members.get(slot.uid)
    return not slot.committing and (member is None or (member.call is None and not member.posting))
