"""What a gang does next: compares its facts with its state and applies the table of `gangs`.

`review` runs for every gang that was touched, before the call that touched it returns.
"""

from extender import barrier, claims, group_status, places, reservations, waking
from extender.admission import group_refusal, may_hold
from extender.effects import EvictPods, ObjectRef, RecordEvent
from extender.gangs import Gang, Happening, Member, Standing, State
from extender.shortfall import Shortfall
from extender.timers import Timer
from extender.world import World

NO_ROOM = "this gang does not fit the cluster as a whole now"
TOO_FEW = "members of this gang are missing"
EVICT_AGAIN = 5.0
RETRY_PAUSE = 0.1
LONGEST_PAUSE = 0.8
"""A gang without room is planned anew at most so often, however fast room comes and goes; the pause doubles while plans
fail, so that those behind it in the order get their turn."""
PLANS_AT_ONCE = 10
_BEFORE = frozenset({State.INCOMPLETE, State.BLOCKED, State.ASSEMBLING, State.PLANNED, State.WAITING})


def review(world: World, gang: Gang, now: float) -> None:
    if _forgotten(world, gang, now):
        return
    _read_requirements(world, gang)
    gang.advance(Happening.SEEN, now)
    if not world.deciding:
        return
    group_status.soon(world, gang, now)
    if gang.busy:
        barrier.commit_if_whole(world, gang, now)
        return
    if gang.state is State.EVICTING:
        if gang.present:
            return
        world.timers.clear(Timer.EVICT, gang.key)
        gang.advance(Happening.DROPPED, now)
    _compare_bound(world, gang, now)
    _look_for_room(world, gang, now)
    barrier.commit_if_whole(world, gang, now)


def evict(world: World, gang: Gang, reason: str, now: float) -> None:
    """A half gang that can't be healed goes as a whole; what it had is free."""
    gang.advance(Happening.HALF, now)
    gang.advance(Happening.GIVEN_UP, now)
    if gang.state is not State.EVICTING:
        return
    world.counters["evicted_gangs"] += 1
    barrier.fail_all(world, gang, reason)
    for member in list(gang.members.values()):
        barrier.stop_retrying(world, gang, member, now)
    world.withdraw_all(gang)
    clear_holds(world, gang)
    reservations.refuse(world, gang, "Evicted", reason, now)
    for ref in (object_of(world, gang), *(pod_ref(member) for member in gang.members.values() if not member.finished)):
        world.emit(RecordEvent(ref=ref, type="Warning", reason="GangEvicted", message=reason))
    evict_again(world, gang, reason, now)


def evict_again(world: World, gang: Gang, reason: str, now: float) -> None:
    pods = tuple(
        member.ref for member in gang.members.values() if member.node and not member.finished and not member.terminating
    )
    if pods:
        world.emit(EvictPods(gang=gang.key, pods=pods, reason=reason))
    world.timers.set(Timer.EVICT, gang.key, now + EVICT_AGAIN)


def give_up_room(world: World, gang: Gang, error: str, now: float) -> None:
    """Nothing is held any more; held calls fail together."""
    barrier.fail_all(world, gang, error)
    world.withdraw_all(gang)
    clear_holds(world, gang)
    gang.advance(Happening.DROPPED, now)


def clear_holds(world: World, gang: Gang) -> None:
    gang.standins_until = None
    for timer in (Timer.ASSEMBLING, Timer.HOLD, Timer.HEAL):
        world.timers.clear(timer, gang.key)
    if not gang.held:
        world.timers.clear(Timer.BARRIER, gang.key)


def object_of(world: World, gang: Gang) -> ObjectRef:
    """Where people look for what happens to a gang: its PodGroup, or the reservation, or a pod."""
    group = world.pod_groups.get(f"{gang.namespace}/{gang.name}")
    if group is not None:
        return ObjectRef(
            api_version=group.api_version,
            kind="PodGroup",
            namespace=gang.namespace,
            name=gang.name,
            uid=group.metadata.uid,
        )
    held = world.reservations.get(gang.key)
    if held is not None:
        meta = held.reservation.metadata
        return ObjectRef(
            api_version="muster.dev/v1alpha1",
            kind="GangReservation",
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
        )
    member = next(iter(gang.members.values()), None)
    if member is None:
        return ObjectRef(api_version="v1", kind="Pod", namespace=gang.namespace, name=gang.name)
    return pod_ref(member)


def pod_ref(member: Member) -> ObjectRef:
    ref = member.ref
    return ObjectRef(api_version="v1", kind="Pod", namespace=ref.namespace, name=ref.name, uid=ref.uid)


def _forgotten(world: World, gang: Gang, now: float) -> bool:
    """No member and no reservation: nothing of the gang stays in memory."""
    if gang.members or gang.key in world.reservations:
        return False
    gang.advance(Happening.GONE, now)
    world.withdraw_all(gang)
    for timer in Timer:
        world.timers.clear(timer, gang.key)
    world.claims.pop(gang.key, None)
    world.hungry.pop(gang.key, None)
    del world.gangs[gang.key]
    group_status.forget(world, gang, now)
    return True


def _read_requirements(world: World, gang: Gang) -> None:
    """What a user's gang needs, from its PodGroup, its labels, or else all pods it has.

    A PodGroup that is gone takes nothing back: what it last said stands (missing information ends nothing).
    """
    group = world.pod_groups.get(gang.key)
    if gang.hub is not None or (gang.needs_group and group is None):
        return
    minimum = gang.label_minimum
    gang.schedule_timeout = world.config.default_schedule_timeout
    if group is not None:
        minimum = group.spec.min_member or minimum
        gang.prefer_topology_key = group.metadata.annotation(places.PREFER_TOPOLOGY)
        if group.spec.schedule_timeout_seconds is not None and group.spec.schedule_timeout_seconds > 0:
            gang.schedule_timeout = float(group.spec.schedule_timeout_seconds)
    minimum = minimum or _all_it_has(gang)
    if minimum != gang.min_member:
        gang.min_member = minimum
        gang.revision += 1
        gang.tried_at = -1


def _all_it_has(gang: Gang) -> int:
    """The minimum where nobody says one. Members that come after it has landed do not make it a half gang."""
    seen = max(1, gang.seen())
    if gang.state in (State.COMMITTING, State.LANDED, State.HEALING):
        return min(gang.min_member, seen)
    return max(1, gang.of_standing(Standing.SERVED)) if gang.running else seen


def _compare_bound(world: World, gang: Gang, now: float) -> None:
    """Whole, half, or nothing bound any more."""
    if gang.minimum_met():
        if gang.advance(Happening.WHOLE, now):
            clear_holds(world, gang)
            gang.waits_from = None
            reservations.landed(world, gang, now)
        elif gang.hub is not None:
            world.timers.clear(Timer.HEAL, gang.key)
            reservations.landed(world, gang, now)
    elif gang.running and not gang.ended_ok:
        was_landed = gang.state is State.LANDED
        if gang.advance(Happening.HALF, now):
            if was_landed:
                world.timers.set_earliest(Timer.HEAL, gang.key, now + world.config.below_minimum_limit)
            world.timers.clear(Timer.HOLD, gang.key)
            gang.standins_until = now + world.config.default_schedule_timeout
            gang.stale = True
            world.timers.set(Timer.ASSEMBLING, gang.key, gang.standins_until)
        if gang.complete and world.timers.get(Timer.HEAL, gang.key) is None:
            # Members that could be bound exist. Where none do, after a restart, they may have run to their end unseen.
            world.timers.set(Timer.HEAL, gang.key, now + world.config.heal_limit)
    elif gang.state is State.COMMITTING:
        gang.advance(Happening.STOPPED, now)
    elif gang.state in (State.LANDED, State.HEALING) and not gang.present:
        give_up_room(world, gang, TOO_FEW, now)
        gang.asked = False
    reservations.note_ends(world, gang, now)


def _look_for_room(world: World, gang: Gang, now: float) -> None:
    if gang.state in (State.COMMITTING, State.EVICTING, State.ABSENT):
        return
    if gang.hub is not None:
        _room_for_hub(world, gang, now)
    else:
        _room_for_user(world, gang, now)


def _room_for_hub(world: World, gang: Gang, now: float) -> None:
    if not may_hold(world, gang):
        held = world.reservations.get(gang.key)
        if held is not None and held.invalid and not held.refused and not held.superseded:
            reservations.refuse(world, gang, "InvalidTemplate", held.invalid, now)
        if gang.state in _BEFORE:
            give_up_room(world, gang, places.NODE_LOST if held is None else TOO_FEW, now)
        elif gang.slots:
            world.withdraw_all(gang)
        return
    landed_once = reservations.landed_once(world, gang)
    if gang.state not in _BEFORE:
        standins = gang.state is State.HEALING and (not landed_once or places.may_stand_in(gang, now))
        _cover_rest(world, gang, now, standins=standins)
        return
    if landed_once and not gang.seen():
        give_up_room(world, gang, TOO_FEW, now)
        return
    shortfall = _cover(world, gang, now, standins=True)
    if shortfall is not None:
        _no_room(world, gang, shortfall, now)
        if reservations.wants_claim(world, gang) and claims.make(world, gang, now):
            return
        if not landed_once:  # its pods ran and are made anew: that is for the hub to judge
            reservations.does_not_fit(world, gang, shortfall, now)
        return
    claims.drop(world, gang)
    if gang.slots or gang.state is not State.INCOMPLETE:
        gang.advance(Happening.PLAN, now)
    if landed_once:
        world.timers.set_earliest(Timer.HOLD, gang.key, now + gang.schedule_timeout)
    reservations.reserved(world, gang, now)
    waking.room_found(world, gang, now)


def _room_for_user(world: World, gang: Gang, now: float) -> None:
    if group_refusal(world, gang):
        if gang.slots or gang.held:
            barrier.fail_all(world, gang, group_refusal(world, gang))
            world.withdraw_all(gang)
            if gang.state in _BEFORE:
                give_up_room(world, gang, TOO_FEW, now)
        return
    if gang.state in (State.LANDED, State.HEALING):
        _cover_rest(world, gang, now, standins=places.may_stand_in(gang, now))
        return
    if not gang.asked:
        if gang.turned_away and gang.complete:
            _wait_unasked(world, gang, now)
        return
    if gang.complete:
        if gang.state is State.BLOCKED and gang.tried_revision == gang.revision and not _worth_trying(world, gang, now):
            return
        shortfall = _cover(world, gang, now, standins=False)
        if shortfall is not None:
            _no_room(world, gang, shortfall, now)
        else:
            claims.drop(world, gang)
            world.timers.clear(Timer.CLAIM, gang.key)
            world.timers.clear(Timer.ASSEMBLING, gang.key)
            gang.standins_until = None
            if gang.advance(Happening.PLAN, now):
                for member in gang.members.values():
                    member.asked = member.call is not None
                if gang.held:
                    gang.advance(Happening.HELD, now)
                world.timers.set(Timer.HOLD, gang.key, now + gang.schedule_timeout)
            waking.room_found(world, gang, now)
    else:
        _assemble(world, gang, now)


def _wait_unasked(world: World, gang: Gang, now: float) -> None:
    """Full nodes: `filter` is not called for any member. The gang is blocked like others, but holds no room before it
    is asked about: there may be reasons that are not modelled here."""
    if gang.tried_revision == gang.revision and not _worth_trying(world, gang, now):
        return
    shortfall = places.lacking(world, gang, now)
    gang.tried_at = -1
    gang.tried_revision = gang.revision
    gang.tried_time = now
    if shortfall is None:
        gang.advance(Happening.DROPPED, now)
    else:
        gang.shortfall = shortfall
        _no_room(world, gang, shortfall, now)


def _assemble(world: World, gang: Gang, now: float) -> None:
    """Hold room for the unseen too, for a short time; after that only a new member brings another try."""
    if gang.state is not State.ASSEMBLING:
        if gang.uids_seen <= gang.assembled_uids:
            return
        gang.standins_until = now + world.config.assembling_hold
    shortfall = _cover(world, gang, now, standins=True)
    if shortfall is not None:
        gang.assembled_uids = gang.uids_seen
        _no_room(world, gang, shortfall, now)
        return
    if gang.advance(Happening.STANDINS, now) and gang.standins_until is not None:
        world.timers.clear(Timer.HOLD, gang.key)
        world.timers.set(Timer.ASSEMBLING, gang.key, gang.standins_until)
    waking.room_found(world, gang, now)


def _cover_rest(world: World, gang: Gang, now: float, *, standins: bool) -> None:
    """Members that are missing beside those bound."""
    _cover(world, gang, now, standins=standins)
    if gang.refused and any(gang.free.values()):
        waking.room_found(world, gang, now)


def _cover(world: World, gang: Gang, now: float, *, standins: bool) -> Shortfall | None:
    """`places.cover`, unless nothing has changed since it was done, or failed."""
    if places.settled(gang, standins=standins):
        world.hungry.pop(gang.key, None)
        return None
    if not gang.stale and gang.tried_at == world.ledger.gains and gang.tried_revision == gang.revision:
        return gang.shortfall
    shortfall = places.cover(world, gang, now, standins=standins)
    gang.tried_at = world.ledger.gains
    gang.tried_revision = gang.revision
    gang.tried_time = now
    gang.shortfall = shortfall
    gang.retry_pause = 0.0 if shortfall is None else min(LONGEST_PAUSE, max(RETRY_PAUSE, 2 * gang.retry_pause))
    if places.settled(gang, standins=standins):
        world.hungry.pop(gang.key, None)
    else:
        world.hungry[gang.key] = None
    return shortfall


def try_hungry(world: World, now: float) -> None:
    """Gangs that want more room, the most important and the oldest first, a few at a time."""
    waiting = [gang for key in world.hungry if (gang := world.gangs.get(key)) and gang.tried_at != world.ledger.gains]
    due = [gang for gang in waiting if now >= gang.tried_time + gang.retry_pause]
    due.sort(key=lambda gang: (-gang.priority, gang.created, gang.born, gang.key))
    for gang in due[:PLANS_AT_ONCE]:
        world.touch(gang.key)
    later = [gang.tried_time + gang.retry_pause for gang in waiting if now < gang.tried_time + gang.retry_pause]
    if len(due) > PLANS_AT_ONCE:
        later.append(now + RETRY_PAUSE)
    if later:
        world.timers.set_earliest(Timer.PLAN, "", max(min(later), now + RETRY_PAUSE))


def _worth_trying(world: World, gang: Gang, now: float) -> bool:
    """Room became free since the last plan failed, and that was not a moment ago."""
    if gang.tried_at == world.ledger.gains:
        return False
    if now < gang.tried_time + gang.retry_pause:
        world.timers.set_earliest(Timer.PLAN, "", gang.tried_time + gang.retry_pause)
        return False
    return True


def _no_room(world: World, gang: Gang, shortfall: Shortfall, now: float) -> None:
    gang.detail = str(shortfall)
    barrier.fail_all(world, gang, NO_ROOM)
    world.withdraw_all(gang)
    clear_holds(world, gang)
    gang.tried_at = world.ledger.gains
    gang.tried_revision = gang.revision
    world.hungry[gang.key] = None
    if gang.advance(Happening.NO_ROOM, now) and gang.hub is None:
        world.emit(
            RecordEvent(ref=object_of(world, gang), type="Warning", reason="GangDoesNotFit", message=gang.detail)
        )
    if gang.hub is None:
        claims.wait_for(world, gang, now)
