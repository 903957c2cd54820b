"""The capacity gate of plain pods' bind calls: charged, then posted; on conflict a short wait for the watch.

Pods that are not known yet wait here too: their watch event may be a moment behind the call.
"""

from extender import breaking
from extender.effects import BindCall, Binding, Outcome
from extender.ledger import Charge, Holder
from extender.pod_facts import PodFacts
from extender.timers import Timer
from extender.world import World

MAX_POSTS = 5
"""A plain pod that can't be bound leaves soon: kube-scheduler may have a better node for it."""
NEWER_CALL = "a newer bind call for this pod replaces this one"
ELSEWHERE = "this pod is bound to another node"
UNKNOWN_POD = "this pod is not known here (yet)"
NO_ROOM = "the node has no room for this pod beside what is bound and promised"
NOT_BOUND = "the Binding could not be posted"
CLIENT_GONE = "nobody waits for this Binding any more"
IN_DOUBT = "the outcome of the Binding is not known yet"


def wait(world: World, call: BindCall, now: float) -> None:
    """Hold the call for a moment; `look_again` decides when something has changed."""
    world.gate[call.uid] = call
    world.timers.set_earliest(
        Timer.GATE,
        call.uid,
        min(now + world.config.bind_conflict_wait, call.deadline - world.config.bind_answer_margin),
    )


def plain(world: World, facts: PodFacts, call: BindCall, now: float) -> None:
    """A bind call of a pod that is in no gang (or in a native group)."""
    uid = facts.ref.uid
    charge = world.ledger.charges.get(uid)
    if uid in world.plain_posting:
        world.answer(world.plain_posting[uid], NEWER_CALL)
        if charge is not None and charge.node != call.node:
            world.plain_posting[uid] = None
            world.answer(call, IN_DOUBT)
        else:
            world.plain_posting[uid] = call
        return
    if charge is not None and charge.holder in (Holder.BOUND, Holder.POSTED):
        world.answer(call, "" if charge.node == call.node else ELSEWHERE)
        return
    if charge is not None and charge.holder is Holder.POSTING and charge.node != call.node:
        world.answer(call, IN_DOUBT)
        return
    if charge is not None and charge.node != call.node:
        world.ledger.release(uid)
        charge = None
    if charge is None and not _room_at(world, facts, call.node):
        wait(world, call, now)
        return
    world.ledger.charge(Charge(uid, call.node, facts.pod_class, facts.request, facts.labels, Holder.POSTING))
    world.settled(uid)
    world.timers.clear(Timer.ANSWERED, uid)
    world.plain_posting[uid] = call
    world.post([_binding(facts, call.node, call)])


def posted(world: World, uid: str, outcome: Outcome, reason: str, now: float) -> None:
    call = world.plain_posting.get(uid)
    charge = world.ledger.charges.get(uid)
    if outcome in (Outcome.BOUND, Outcome.ALREADY_THERE) or charge is None or charge.holder is Holder.BOUND:
        world.ledger.strengthen(uid, Holder.POSTED)
        _end(world, uid, "" if charge is not None else f"{NOT_BOUND}: {reason}")
        world.settled(uid)
        return
    if outcome is Outcome.UNKNOWN:
        world.in_doubt.add(uid)
    if outcome in (Outcome.UNKNOWN, Outcome.REJECTED, Outcome.NOT_SENT) and call is not None and world.deciding:
        failed = world.posts_failed[uid] = world.posts_failed.get(uid, 0) + 1
        pause = min(world.config.post_retry_max, world.config.post_retry * 2 ** (failed - 1))
        if failed < MAX_POSTS and now + pause < call.deadline - world.config.bind_answer_margin:
            world.timers.set(Timer.RETRY, uid, now + pause)
            return
    if uid in world.in_doubt and outcome not in (Outcome.GONE, Outcome.CONFLICT):
        world.doubt(uid, now)
        _end(world, uid, IN_DOUBT)
        return
    world.ledger.release(uid)
    world.settled(uid)
    _end(world, uid, f"{NOT_BOUND}: {reason}")


def settled_by_watch(world: World, uid: str, node: str) -> None:
    """The pod is bound: nothing is left to be posted, whatever a POST under way will say."""
    call = world.plain_posting.get(uid)
    _end(world, uid, "" if call is None or call.node == node else ELSEWHERE)


def retry(world: World, uid: str, now: float) -> None:
    """Send a failed Binding again."""
    call, charge, facts = world.plain_posting.get(uid), world.ledger.charges.get(uid), world.pods.get(uid)
    if call is None or charge is None or facts is None:
        posted(world, uid, Outcome.NOT_SENT, CLIENT_GONE, now)
        return
    world.post([_binding(facts, charge.node, call)])


def abandoned(world: World, uid: str, now: float) -> None:
    """The client has gone: no answer is owed; a POST that is under way goes on."""
    world.plain_posting[uid] = None
    if world.timers.get(Timer.RETRY, uid) is not None:
        world.timers.clear(Timer.RETRY, uid)
        posted(world, uid, Outcome.NOT_SENT, CLIENT_GONE, now)


def expired(world: World, uid: str) -> None:
    """The short wait is over."""
    call = world.gate.pop(uid, None)
    world.answer(call, NO_ROOM if uid in world.pods else UNKNOWN_POD)


def fail_all(world: World, error: str) -> None:
    """Every call that waits, and every call whose POST is under way; those POSTs go on."""
    for uid, call in list(world.gate.items()):
        world.answer(call, error)
        del world.gate[uid]
        world.timers.clear(Timer.GATE, uid)
    for uid, posting in list(world.plain_posting.items()):
        world.answer(posting, error)
        world.plain_posting[uid] = None


def _end(world: World, uid: str, error: str) -> None:
    world.timers.clear(Timer.RETRY, uid)
    world.posts_failed.pop(uid, None)
    world.answer(world.plain_posting.pop(uid, None), error)


def _room_at(world: World, facts: PodFacts, node: str) -> bool:
    return world.ledger.fits_beside(facts.pod_class, node) or breaking.make_room(world, facts, node)


def _binding(facts: PodFacts, node: str, call: BindCall) -> Binding:
    ref = facts.ref
    return Binding(uid=ref.uid, namespace=ref.namespace, name=ref.name, node=node, deadline=call.deadline)
