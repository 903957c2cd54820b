"""A gang's bind calls: held until the gang is whole, re-checked, posted at once, and healed where a POST fails.

A call that is held here names the node of the member's slot. Nothing is posted before every role's minimum and
minMember are bound or waiting; afterwards (landed, healing) each further call is re-checked and posted on arrival.
"""

from zlib import crc32

from extender import places
from extender.admission import gang_refusal, refusal
from extender.effects import BindCall, Binding, Outcome, Recheck
from extender.gangs import Gang, Happening, Member, Standing, State
from extender.ledger import Charge, Holder, Slot
from extender.pod_facts import PodFacts
from extender.timers import Timer
from extender.world import World

NEWER_CALL = "a newer bind call for this pod replaces this one"
ELSEWHERE = "this pod is bound to another node"
NOT_PLANNED = "the gang's plan has no room for this pod on this node"
TIMED_OUT = "the gang was not complete in time, all its members are released together"
NOT_BOUND = "the Binding could not be posted"
DELETING = "this pod is being deleted"
CLIENT_GONE = "nobody waits for this Binding any more"
IN_DOUBT = "the outcome of the Binding is not known yet"


def arrived(world: World, gang: Gang, member: Member, facts: PodFacts, call: BindCall, now: float) -> None:
    """A bind call for a member: refused at once, or held."""
    if member.call is not None:
        world.fail_call(gang, member, NEWER_CALL)
    if member.node:
        world.answer(call, "" if member.node == call.node else ELSEWHERE)
        return
    reason = refusal(world, gang, facts, now)
    if reason:
        gang.refused[member.ref.uid] = None
        world.answer(call, reason)
        return
    gang.asked = True
    charge = world.ledger.charges.get(member.ref.uid)
    if charge is not None and charge.node != call.node:
        world.answer(call, IN_DOUBT)
        return
    if charge is None and not _has_place(world, gang, member, call.node):
        gang.refused[member.ref.uid] = None
        world.answer(call, NOT_PLANNED)
        return
    gang.refused.pop(member.ref.uid, None)
    member.call = call
    gang.retally(member)
    if member.posting:
        return
    world.timers.set_earliest(Timer.BARRIER, gang.key, _answer_by(world, gang, call))
    gang.advance(Happening.HELD, now)
    world.touch(gang.key)


def commit_if_whole(world: World, gang: Gang, now: float) -> None:
    """Begin the commit when nothing is missing; `recheck_done` goes on with it."""
    if gang.rechecking or gang.of_standing(Standing.WAITING) <= gang.posting:
        return
    if gang.state in (State.LANDED, State.HEALING) or (gang.state is State.COMMITTING and gang.running):
        pass  # the gang is committed to: each further call brings it closer to whole
    elif gang.state in (State.PLANNED, State.WAITING) and gang.minimum_met(with_waiting=True):
        gang.advance(Happening.QUORUM, now)
    else:
        return
    gang.token += 1
    gang.rechecking = True
    nodes = set()
    for uid in gang.held:
        member = gang.members[uid]
        if member.posting:
            continue
        slot = world.slot_of(member)
        if slot is not None:
            slot.committing = True
            nodes.add(slot.node)
        elif member.call is not None:
            nodes.add(member.call.node)
    hub = gang.key in world.reservations
    meta = world.reservations[gang.key].reservation.metadata if hub else None
    world.emit(
        Recheck(
            gang=gang.key,
            token=gang.token,
            nodes=tuple(sorted(nodes)),
            pod_group=(gang.namespace, gang.name) if gang.needs_group else None,
            reservation=(meta.namespace, meta.name) if meta is not None else None,
        )
    )


def recheck_done(world: World, gang: Gang, token: int, failure: str, now: float) -> None:
    """The live reads are in the caches: post everything that is held, or hold on, or let go."""
    if not gang.rechecking or token != gang.token:
        return
    _end_recheck(world, gang)
    reason = failure and f"the re-check before the commit failed: {failure}"
    reason = reason or gang_refusal(world, gang, now)
    if reason:
        fail_all(world, gang, reason)
        gang.advance(Happening.STOPPED, now)
        world.touch(gang.key)
        return
    places.drop_unusable(world, gang)
    if gang.state is State.COMMITTING and not gang.minimum_met(with_waiting=True):
        gang.advance(Happening.HELD if gang.held else Happening.STOPPED, now)
        world.touch(gang.key)
        return
    bindings = []
    for uid in list(gang.held):
        member = gang.members[uid]
        if member.posting or member.call is None:
            continue
        bindings.append(_charge_and_bind(world, gang, member, member.call))
    if bindings:
        world.post(bindings, gang.key)
    world.touch(gang.key)


def posted(world: World, gang: Gang, member: Member, outcome: Outcome, reason: str, now: float) -> None:
    """One POST of a member has ended."""
    uid = member.ref.uid
    charge = world.ledger.charges.get(uid)
    if charge is None:
        _end_post(world, gang, member, NOT_BOUND)
        return
    if outcome in (Outcome.BOUND, Outcome.ALREADY_THERE):
        bound(world, gang, member, charge.node, now)
        return
    if outcome in (Outcome.GONE, Outcome.CONFLICT):
        member.charged = False
        world.ledger.release(uid)
        _end_post(world, gang, member, f"{NOT_BOUND}: {reason}")
        return
    if outcome is Outcome.UNKNOWN:
        world.in_doubt.add(uid)
    member.posts += 1
    pause = min(world.config.post_retry_max, world.config.post_retry * 2 ** (member.posts - 1))
    going_on = world.deciding and gang.state is not State.EVICTING
    if going_on and member.call is not None and now + pause < _answer_by(world, gang, member.call):
        world.timers.set(Timer.RETRY, uid, now + pause)
        return
    if uid in world.in_doubt:
        world.doubt(uid, now)
        _end_post(world, gang, member, IN_DOUBT)
        return
    member.charged = False
    world.ledger.release(uid)
    if going_on:
        slot = world.promise(gang, member.role, member.pod_class, charge.node)
        world.give(gang, slot, member)
    _end_post(world, gang, member, f"{NOT_BOUND}: {reason}")


def bound(world: World, gang: Gang, member: Member, node: str, now: float) -> None:
    """By a confirmed POST; the watch says the same later."""
    uid = member.ref.uid
    world.ledger.strengthen(uid, Holder.POSTED)
    member.node = node
    world.settled(uid)
    _limit_the_rest(world, gang, member, now)
    _end_post(world, gang, member, "")


def settled_by_watch(world: World, gang: Gang, member: Member, now: float) -> None:
    """The pod is bound or has ended: nothing is left to be posted, whatever a POST under way will say."""
    _limit_the_rest(world, gang, member, now)
    if member.posting:
        _end_post(world, gang, member, "" if member.call is None or member.call.node == member.node else ELSEWHERE)
    elif member.call is not None:
        world.fail_call(gang, member, "" if member.call.node == member.node else ELSEWHERE)


def _limit_the_rest(world: World, gang: Gang, member: Member, now: float) -> None:
    """From the first Binding of a commit on, whoever tells of it, the rest has to follow within a stated time."""
    if gang.state is State.COMMITTING and member.node:
        world.timers.set_earliest(Timer.HEAL, gang.key, now + world.config.heal_limit)


def retry(world: World, gang: Gang, member: Member, now: float) -> None:
    """Send a failed Binding again."""
    charge = world.ledger.charges.get(member.ref.uid)
    if not member.posting:
        return
    if member.call is None or charge is None:
        posted(world, gang, member, Outcome.NOT_SENT, CLIENT_GONE, now)
        return
    world.post([_binding(member, member.call, charge.node)], gang.key)


def abandoned(world: World, gang: Gang, member: Member, now: float) -> None:
    """The client has gone: the member waits no longer; a POST that is under way goes on."""
    member.call = None
    gang.retally(member)
    if not gang.held:
        world.timers.clear(Timer.BARRIER, gang.key)
        if gang.rechecking:
            _end_recheck(world, gang)
            gang.token += 1
            gang.advance(Happening.STOPPED, now)
        gang.advance(Happening.EMPTIED, now)
    stop_retrying(world, gang, member, now)
    world.touch(gang.key)


def stop_retrying(world: World, gang: Gang, member: Member, now: float) -> None:
    """A member between two POSTs is not posted again; one whose POST is under way is left to end."""
    if member.posting and world.timers.get(Timer.RETRY, member.ref.uid) is not None:
        world.timers.clear(Timer.RETRY, member.ref.uid)
        call, member.call = member.call, None
        posted(world, gang, member, Outcome.NOT_SENT, CLIENT_GONE, now)
        world.answer(call, NOT_BOUND)


def timed_out(world: World, gang: Gang, now: float) -> None:
    """The first held call must be answered now: all fail together; slots stay for the next round."""
    fail_all(world, gang, TIMED_OUT)
    if not gang.posting and not gang.running:
        gang.advance(Happening.STOPPED, now)
        gang.advance(Happening.EMPTIED, now)
    world.counters["timeouts"] += 1
    world.touch(gang.key)


def fail_all(world: World, gang: Gang, error: str) -> None:
    """Every held call that is not being posted fails, a re-check under way is called off."""
    if gang.rechecking:
        _end_recheck(world, gang)
        gang.token += 1
    for uid in list(gang.held):
        member = gang.members[uid]
        if not member.posting:
            gang.refused[uid] = None
            world.fail_call(gang, member, error)
    if not gang.held:
        world.timers.clear(Timer.BARRIER, gang.key)


def _has_place(world: World, gang: Gang, member: Member, node: str) -> bool:
    """The member's slot is on this node, or can be: by a free slot there, or by moving one."""
    own = world.slot_of(member)
    if own is not None and own.node == node:
        return True
    free = [world.ledger.slots[slot_id] for slot_id in gang.free.get(member.role, ())]
    fitting = [slot for slot in free if slot.pod_class is member.pod_class]
    for slot in fitting:
        if slot.node == node:
            world.give(gang, slot, member)
            return True
    movable = own or next(iter(fitting), None)
    if movable is None or movable.committing or not world.ledger.allowed_beside(member.pod_class, node):
        return False
    world.ledger.move(movable, node)
    world.counters["moves"] += 1
    if movable is not own:
        world.give(gang, movable, member)
    return True


def _charge_and_bind(world: World, gang: Gang, member: Member, call: BindCall) -> Binding:
    uid = member.ref.uid
    slot = world.slot_of(member)
    facts = world.pods[uid]
    charge = Charge(uid, call.node, facts.pod_class, facts.request, facts.labels, Holder.POSTING, gang.key)
    if slot is not None:
        _unlist(gang, slot)
        member.slot = 0
        world.ledger.convert(slot.id, charge)
    else:
        world.ledger.charge(charge)
    world.settled(uid)
    member.charged = True
    member.posting = True
    member.posts = 0
    gang.retally(member)
    return _binding(member, call, call.node)


def _binding(member: Member, call: BindCall, node: str) -> Binding:
    ref = member.ref
    return Binding(uid=ref.uid, namespace=ref.namespace, name=ref.name, node=node, deadline=call.deadline)


def _end_post(world: World, gang: Gang, member: Member, error: str) -> None:
    world.timers.clear(Timer.RETRY, member.ref.uid)
    member.posting = False
    member.posts = 0
    world.answer(member.call, error)
    member.call = None
    if error:
        gang.refused[member.ref.uid] = None
    gang.retally(member)
    if not gang.held:
        world.timers.clear(Timer.BARRIER, gang.key)
    world.touch(gang.key)


def _end_recheck(world: World, gang: Gang) -> None:
    gang.rechecking = False
    for slot in world.slots_of(gang):
        slot.committing = False


def _unlist(gang: Gang, slot: Slot) -> None:
    gang.slots.pop(slot.id, None)
    gang.free.get(slot.role, {}).pop(slot.id, None)


def _answer_by(world: World, gang: Gang, call: BindCall) -> float:
    """Before the client gives up; spread over a second, so that many gangs do not fail in one instant."""
    return call.deadline - world.config.bind_answer_margin - crc32(gang.key.encode()) % 1000 / 1000
