"""A bind call's way: to the gang's barrier, or through the capacity gate."""

from extender import barrier, gate
from extender.effects import BindCall, Outcome
from extender.world import World

NOT_DECIDING = "the extender is not deciding yet"


def arrived(world: World, call: BindCall, now: float) -> None:
    if not world.deciding:
        world.answer(call, NOT_DECIDING)
        return
    older = world.gate.pop(call.uid, None)
    if older is not None:
        world.answer(older, gate.NEWER_CALL)
    _route(world, call, now)


def look_again(world: World, uid: str, now: float) -> None:
    """The watch has shown the pod, or room has become free on the node of the call."""
    call = world.gate.pop(uid, None)
    if call is not None:
        _route(world, call, now)
        # Its timer runs on if it waits again: the wait is bounded as a whole.


def look_at_gains(world: World, now: float) -> None:
    for uid, call in list(world.gate.items()):
        if call.node in world.gained and uid in world.pods:
            look_again(world, uid, now)


def abandoned(world: World, call_id: int, now: float) -> None:
    for uid, call in world.gate.items():
        if call.id == call_id:
            del world.gate[uid]
            return
    for uid, posting in world.plain_posting.items():
        if posting is not None and posting.id == call_id:
            gate.abandoned(world, uid, now)
            return
    for gang in world.gangs.values():
        for uid in gang.held:
            member = gang.members[uid]
            if member.call is not None and member.call.id == call_id:
                barrier.abandoned(world, gang, member, now)
                return


def posted(world: World, uid: str, outcome: Outcome, reason: str, now: float) -> None:
    facts = world.pods.get(uid)
    gang = world.gangs.get(facts.gang) if facts is not None else None
    member = gang.members.get(uid) if gang is not None else None
    if gang is not None and member is not None:
        if member.posting:
            barrier.posted(world, gang, member, outcome, reason, now)
        elif outcome in (Outcome.BOUND, Outcome.ALREADY_THERE) and member.charged and not member.node:
            barrier.bound(world, gang, member, world.ledger.charges[uid].node, now)
    elif uid in world.plain_posting:
        gate.posted(world, uid, outcome, reason, now)


def _route(world: World, call: BindCall, now: float) -> None:
    facts = world.pods.get(call.uid)
    if facts is None:
        if call.uid in world.tombstones:
            world.answer(call, gate.UNKNOWN_POD)
        else:
            gate.wait(world, call, now)
        return
    gang = world.gangs.get(facts.gang) if facts.gang else None
    member = gang.members.get(call.uid) if gang is not None else None
    if gang is not None and member is not None:
        barrier.arrived(world, gang, member, facts, call, now)
    else:
        gate.plain(world, facts, call, now)
