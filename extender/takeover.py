"""Beginning to decide, and ceasing to.

Everything is rebuilt from the caches: half-bound gangs first, for their members hold room that is worth nothing
without the rest; then dispatched ones, whose pods are on their way; then Reserved; each by age.
"""

from extender import barrier, gate, group_status, life, places, reservations
from extender.effects import Outcome
from extender.gangs import Gang
from extender.ledger import Holder
from extender.timers import Timer
from extender.world import World

STOOD_DOWN = "this extender does not lead any more"
_KEPT = (Timer.UNKNOWN, Timer.UNSEEN, Timer.TOMBSTONES)


def take_over(world: World, now: float) -> None:
    world.deciding = True
    group_status.all_again(world, now)
    for key, held in world.reservations.items():
        spec = held.reservation.spec
        if held.refused:
            continue
        if spec.state == "Dispatched":
            held.dispatched_from = now
            if held.reservation.status.state != "Landed":
                world.timers.set(Timer.LANDING, key, now + spec.landing_deadline_seconds)
        else:
            world.timers.set(Timer.TTL, key, now + spec.ttl_seconds)
    for gang in sorted(world.gangs.values(), key=lambda gang: _order(world, gang)):
        own = world.reservations.get(gang.key)
        if own is not None and own.reservation.status.state == "Reserved" and not gang.slots and not gang.running:
            places.cover_as_recorded(world, gang, reservations.recorded_places(own), now)
        life.review(world, gang, now)
        world.dirty.pop(gang.key, None)


def judge_again(world: World) -> None:
    """A predecessor's Bindings have shown up by now, or never will: what does not fit is judged."""
    for key in list(world.hungry):
        gang = world.gangs.get(key)
        if gang is not None:
            gang.tried_at = -1
            world.touch(key)


def stand_down(world: World, now: float) -> None:
    """Held calls fail; plans go. Charges stay: Bindings that were sent may still land."""
    world.deciding = False
    gate.fail_all(world, STOOD_DOWN)
    for gang in list(world.gangs.values()):
        barrier.fail_all(world, gang, STOOD_DOWN)
        for uid in list(gang.held):
            world.fail_call(gang, gang.members[uid], STOOD_DOWN)
        for member in list(gang.members.values()):
            barrier.stop_retrying(world, gang, member, now)
        world.withdraw_all(gang)
        gang.start_over()
    for uid in list(world.plain_posting):
        if world.timers.get(Timer.RETRY, uid) is not None:
            gate.posted(world, uid, Outcome.NOT_SENT, STOOD_DOWN, now)
    for uid in [uid for uid, charge in world.ledger.charges.items() if charge.holder is Holder.ANSWERED]:
        world.ledger.release(uid)
    for held in world.reservations.values():
        held.wish = None
    world.claims.clear()
    world.hungry.clear()
    world.dirty.clear()
    world.timers.keep_only(_KEPT)


def _order(world: World, gang: Gang) -> tuple[int, int, str, float, str]:
    held = world.reservations.get(gang.key)
    if gang.running and not gang.minimum_met():
        rank = 0
    elif held is not None and held.reservation.spec.state == "Dispatched":
        rank = 1
    elif held is not None and held.reservation.status.state == "Reserved":
        rank = 2
    else:
        rank = 3
    return (rank, -gang.priority if rank == 3 else 0, gang.created, gang.born, gang.key)
