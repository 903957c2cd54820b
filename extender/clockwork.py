"""What happens when a timer falls due: one line per timer, the rules are in the modules called."""

from extender import barrier, claims, gate, group_status, intake, life, reservations, waking
from extender.gangs import Gang, Member, State
from extender.ledger import Holder
from extender.timers import Timer
from extender.world import World

NOT_LANDED = "the landing deadline has passed"
NOT_DISPATCHED = "not dispatched before the reservation's time to live was over"
NOT_HEALED = "the gang stayed below its minimum for too long"
HOLD_OVER = "the gang was not complete within its schedule timeout, all its members are released together"
ASSEMBLED_IN_VAIN = "members of this gang did not appear in time, those that wait are released together"
QUEUE_LAG = 2.5
"""kube-scheduler was heard so recently: members it has not asked about are still in its queue, or in its back-off after
an error (podMaxBackoffSeconds 2, as shipped)."""
LOOK_AGAIN = 0.5
ON_THE_WAY = 1.0
"""From an answer of `filter` to the bind call, with a busy kube-scheduler in between."""
_OF_PODS = frozenset({Timer.GATE, Timer.RETRY, Timer.UNKNOWN, Timer.ANSWERED, Timer.UNSEEN})


def fire(world: World, timer: Timer, key: str, now: float) -> None:
    if timer is Timer.TOMBSTONES:
        intake.bury(world, now)
    elif timer in _OF_PODS:
        _of_pod(world, timer, key, now)
    elif not world.deciding:
        return
    elif timer is Timer.PLAN:
        life.try_hungry(world, now)
    elif timer is Timer.GROUP:
        group_status.write(world, key)
    elif timer is Timer.STATUS:
        reservations.ask_again(world, key, now)
    elif (gang := world.gangs.get(key)) is not None:
        _of_gang(world, timer, gang, now)


def _of_pod(world: World, timer: Timer, uid: str, now: float) -> None:
    if timer is Timer.GATE:
        gate.expired(world, uid)
    elif timer is Timer.UNKNOWN:
        _doubt_is_over(world, uid)
    elif timer is Timer.ANSWERED:
        charge = world.ledger.charges.get(uid)
        if charge is not None and charge.holder is Holder.ANSWERED:
            world.ledger.release(uid)
    elif timer is Timer.UNSEEN:
        facts = world.pods.get(uid)
        if facts is not None and not facts.confirmed:
            intake.forget(world, uid, now)
    elif timer is Timer.RETRY:
        facts = world.pods.get(uid)
        gang = world.gangs.get(facts.gang) if facts is not None else None
        member = gang.members.get(uid) if gang is not None else None
        if gang is not None and member is not None:
            barrier.retry(world, gang, member, now)
        else:
            gate.retry(world, uid, now)


def _doubt_is_over(world: World, uid: str) -> None:
    """The API server's own request timeout has passed: what the watch has not shown did not happen."""
    world.in_doubt.discard(uid)
    charge = world.ledger.charges.get(uid)
    facts = world.pods.get(uid)
    if charge is None or charge.holder is not Holder.POSTING:
        return
    world.ledger.release(uid)
    gang = world.gangs.get(facts.gang) if facts is not None else None
    member = gang.members.get(uid) if gang is not None else None
    if gang is not None and member is not None:
        member.charged = False
        gang.retally(member)
        world.touch(gang.key)


def _of_gang(world: World, timer: Timer, gang: Gang, now: float) -> None:
    if timer is Timer.BARRIER:
        barrier.timed_out(world, gang, now)
    elif timer is Timer.ASSEMBLING:
        _assembling_is_over(world, gang, now)
    elif timer is Timer.HOLD:
        _hold_is_over(world, gang, now)
    elif timer is Timer.HEAL:
        lost = gang.hub is not None and gang.key not in world.reservations  # the hub takes it back itself
        if gang.state in (State.HEALING, State.COMMITTING) and not gang.minimum_met() and not lost:
            life.evict(world, gang, NOT_HEALED, now)
    elif timer is Timer.EVICT:
        if gang.state is State.EVICTING:
            life.evict_again(world, gang, NOT_HEALED, now)
    elif timer is Timer.TTL:
        reservations.refuse(world, gang, "TTLExpired", NOT_DISPATCHED, now)
        world.touch(gang.key)
    elif timer is Timer.LANDING:
        _landing_is_over(world, gang, now)
    elif timer is Timer.WAKE:
        waking.wake(world, gang)
    elif timer is Timer.CLAIM:
        claims.due(world, gang, now)


def _assembling_is_over(world: World, gang: Gang, now: float) -> None:
    """Room for the unseen is given back; while others are bound, only the stand-ins go."""
    gang.standins_until = None
    if gang.state is State.ASSEMBLING:
        gang.assembled_uids = gang.uids_seen
        life.give_up_room(world, gang, ASSEMBLED_IN_VAIN, now)
    else:
        gang.stale = True
    world.touch(gang.key)


def _hold_is_over(world: World, gang: Gang, now: float) -> None:
    """ScheduleTimeoutSeconds. Members that kube-scheduler has not come to yet, while it is at work, get more time, but
    not without bound: room is never held for a member that no filter lets through."""
    if gang.state not in (State.PLANNED, State.WAITING) or gang.busy:
        return
    queued = any(_still_comes(world, gang, member, now) for member in gang.members.values())
    longest = gang.state_since + max(gang.schedule_timeout, world.config.default_schedule_timeout)
    if queued and now < longest and now - world.last_question < QUEUE_LAG:
        world.timers.set(Timer.HOLD, gang.key, now + LOOK_AGAIN)
        return
    life.give_up_room(world, gang, HOLD_OVER, now)
    gang.asked = False
    world.counters["timeouts"] += 1


def _still_comes(world: World, gang: Gang, member: Member, now: float) -> bool:
    """Its turn has not come since the plan was made, or it came just now and its bind call is on the way.

    One that was tried, and never got as far as `filter`, is kept back by kube-scheduler's own filters; one of a
    scheduler that was never heard here is nobody's business.
    """
    if member.call is not None or member.node or member.finished:
        return False
    if member.asked:
        return now - member.asked_at < ON_THE_WAY and member.ref.uid not in gang.refused
    if member.ever_asked:
        return True
    pod = world.pods[member.ref.uid].pod
    return not member.unschedulable and pod is not None and pod.spec.scheduler_name in world.schedulers


def _landing_is_over(world: World, gang: Gang, now: float) -> None:
    if gang.state is State.LANDED:
        return
    wanted = sum(role.count for role in gang.roles.values())
    message = f"{NOT_LANDED}: {gang.running} of {wanted} pods bound"
    reservations.refuse(world, gang, "LandingDeadlineExceeded", message, now)
    if gang.running:
        life.evict(world, gang, message, now)
    else:
        life.give_up_room(world, gang, NOT_LANDED, now)
    world.touch(gang.key)
