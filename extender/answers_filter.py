"""What `filter` answers, rule by rule, in this order:

1. a pod of a native group, and any pod while nothing is promised: every name that was offered;
2. a pod whose Binding is on its way: that node;
3. a member of a gang that may not be admitted, or that has no room: refused;
4. a member of a planned gang: its slot's node; else, by swap, a free slot of its class that is offered; else its slot
   moves to offered room that nobody was promised; else refused, which proves nothing about the gang;
5. any other pod: the nodes where it fits beside the promises; if none is left and it may break promises, the one node
   where that costs gangs least; else refused.

A refusal is `NodeNames: []` and one entry in FailedAndUnresolvableNodes with a sentence that stays the same while
nothing changes: FailedNodes would start a preemption dry run whose text changes each time, and a changed text wakes the
pod again. The one exception is the pod's own nominated node, which stays in FailedNodes so that it does not preempt
again elsewhere.
"""

from collections.abc import Iterable, Sequence

from extender import admission, breaking, life, waking
from extender.filter_answer import FilterAnswer
from extender.gangs import Gang, Member, State
from extender.ledger import Charge, Holder, Slot
from extender.pod_facts import PodFacts
from extender.timers import Timer
from extender.world import World
from kube.objects.pods import Pod

NOT_OFFERED = "the node planned for this pod was not offered, and none of those offered has room for it"
PROMISED = "the room of these nodes is promised to gangs"
DELETED = "this pod was deleted"
UNREADABLE = "this pod's requests can't be read"
NOT_DECIDING = "the extender is not deciding yet"
STRIKES = 3
"""A planned node that was not offered so often is avoided for a while."""
AVOID = 60.0
ASK_AGAIN = 1.0


def answer(world: World, pod: Pod, facts: PodFacts | None, names: Sequence[str], now: float) -> FilterAnswer:
    """`facts`: of the pod, from the watch or from this request; None if it can't be used."""
    if facts is None:
        gone = pod.metadata.uid in world.tombstones
        return _refuse(world, names, DELETED if gone else UNREADABLE, pod.status.nominated_node_name)
    if facts.native:
        return FilterAnswer(node_names=list(names))
    charge = world.ledger.charges.get(facts.ref.uid)
    if charge is not None:
        if charge.node in names:
            return FilterAnswer(node_names=[charge.node])
        if charge.holder is Holder.ANSWERED:
            world.ledger.release(facts.ref.uid)
        else:
            return _refuse(world, names, NOT_OFFERED, facts.nominated)
    gang = world.gangs.get(facts.gang) if facts.gang else None
    member = gang.members.get(facts.ref.uid) if gang is not None else None
    if gang is not None and member is not None:
        return _of_gang(world, gang, member, facts, names, now)
    return _plain(world, facts, names, now)


# --- members ---------------------------------------------------------------------------------------------------


def _of_gang(
    world: World, gang: Gang, member: Member, facts: PodFacts, names: Sequence[str], now: float
) -> FilterAnswer:
    gang.asked = True
    member.asked = member.ever_asked = True
    member.asked_at = now
    reason = admission.refusal(world, gang, facts, now)
    if not reason:
        if not _has_or_may_have_slot(world, gang, member):
            _find_room(world, gang, now)
        node = _slot_node(world, gang, member, names)
        if node is not None:
            gang.strikes.pop(node, None)
            gang.refused.pop(facts.ref.uid, None)
            return FilterAnswer(node_names=[node])
        reason = _why_not(gang, member)
    gang.refused[facts.ref.uid] = None
    if reason == NOT_OFFERED:
        _strike(world, gang, member, names, now)
    return _refuse(world, names, reason, facts.nominated)


def _has_or_may_have_slot(world: World, gang: Gang, member: Member) -> bool:
    if member.slot:
        return True
    ledger = world.ledger
    return any(ledger.slots[slot_id].pod_class is member.pod_class for slot_id in gang.free.get(member.role, ()))


def _find_room(world: World, gang: Gang, now: float) -> None:
    """Plan now, unless a plan has just failed and no room became free since."""
    if (
        gang.state is State.BLOCKED
        and gang.tried_revision == gang.revision
        and (gang.tried_at == world.ledger.gains or now < gang.tried_time + gang.retry_pause)
    ):
        return
    life.review(world, gang, now)


def _slot_node(world: World, gang: Gang, member: Member, names: Sequence[str]) -> str | None:
    own = world.slot_of(member)
    if own is not None and (own.node in names or own.committing):
        return own.node if own.node in names else None
    offered: Sequence[str] | frozenset[str] = names
    first = None
    for position, slot_id in enumerate(gang.free.get(member.role, ())):
        slot = world.ledger.slots[slot_id]
        if slot.pod_class is not member.pod_class:
            continue
        first = first or slot
        if position == 2:
            offered = frozenset(names)
        if slot.node in offered:
            if own is not None:
                world.counters["swaps"] += 1
            world.give(gang, slot, member)
            return slot.node
    movable = own or first
    if movable is None or member.call is not None:
        return None
    return _move(world, gang, member, movable, names)


def _move(world: World, gang: Gang, member: Member, slot: Slot, names: Iterable[str]) -> str | None:
    """Tightest offered node with room that nobody was promised and that no other gang claims."""
    closed = _claimed(world, member.pod_class.priority, gang.key)
    best: tuple[int, int, str] | None = None
    ledger = world.ledger
    for name in names:
        if name in closed or (slot.role, name) in gang.avoid or not ledger.allowed_beside(member.pod_class, name):
            continue
        free = ledger.rooms[name].free
        devices = sum(1 for key, units in free.items() if "/" in key and units > 0 and key not in slot.pod_class.charge)
        rank = (devices, free.get("cpu", 0), name)
        if best is None or rank < best:
            best = rank
    if best is None:
        return None
    world.counters["moves"] += 1
    ledger.move(slot, best[2])
    if slot.uid != member.ref.uid:
        world.give(gang, slot, member)
    return best[2]


def _why_not(gang: Gang, member: Member) -> str:
    if gang.state is State.BLOCKED:
        return life.NO_ROOM
    if gang.state is State.INCOMPLETE:
        return life.TOO_FEW
    if not member.slot and not gang.free.get(member.role):
        return life.NO_ROOM
    return NOT_OFFERED


def _strike(world: World, gang: Gang, member: Member, names: Sequence[str], now: float) -> None:
    """The planned node is not offered: sampling, a filter not modelled here, or the scheduler's cache lags.

    No event ends such a refusal, so the pod is woken soon. A one-name call is a check of a nominated node: it says
    nothing about the planned one.
    """
    waking.later(world, gang, ASK_AGAIN, now)
    slot = world.slot_of(member)
    if slot is None or len(names) < 2:
        return
    strikes = gang.strikes[slot.node] = gang.strikes.get(slot.node, 0) + 1
    if strikes >= STRIKES:
        del gang.strikes[slot.node]
        gang.avoid[slot.role, slot.node] = now + AVOID
        world.withdraw(gang, slot)
        gang.stale = True
        gang.revision += 1
        world.touch(gang.key)


# --- other pods ------------------------------------------------------------------------------------------------


def _plain(world: World, facts: PodFacts, names: Sequence[str], now: float) -> FilterAnswer:
    kept = fitting_beside(world, facts, names)
    if kept:
        return FilterAnswer(node_names=kept)
    node = breaking.cheapest_node(world, facts, names)
    if node is None or not breaking.make_room(world, facts, node):
        return _refuse(world, names, PROMISED, facts.nominated)
    world.ledger.charge(Charge(facts.ref.uid, node, facts.pod_class, facts.request, facts.labels, Holder.ANSWERED))
    world.timers.set(Timer.ANSWERED, facts.ref.uid, now + world.config.answered_hold)
    return FilterAnswer(node_names=[node])


def fitting_beside(world: World, facts: PodFacts, names: Sequence[str]) -> list[str]:
    """Offered nodes that nothing is promised on, or where the pod fits beside the promises, per resource.

    On a node without promises kube-scheduler's own filters have said all there is to say.
    """
    ledger = world.ledger
    closed = frozenset[str]() if facts.daemon else _claimed(world, facts.priority, "")
    if not ledger.kept_nodes and not closed:
        return list(names)
    return [
        name
        for name in names
        if name not in closed and (name not in ledger.kept_nodes or ledger.allowed_beside(facts.pod_class, name))
    ]


def _claimed(world: World, priority: int, own: str) -> frozenset[str]:
    """Nodes where a gang of at least this priority waits for its turn."""
    closed: frozenset[str] = frozenset()
    for key, nodes in world.claims.items():
        claimant = world.gangs.get(key)
        if key != own and claimant is not None and claimant.priority >= priority:
            closed |= nodes
    return closed


def _refuse(world: World, names: Sequence[str], reason: str, nominated: str) -> FilterAnswer:
    world.refusals[reason] += 1
    if nominated and nominated in names:
        return FilterAnswer(node_names=[], failed={nominated: reason})
    return FilterAnswer(node_names=[], unresolvable={names[0]: reason} if names else {})
