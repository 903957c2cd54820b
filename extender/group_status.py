"""Phase and counts of a PodGroup, as scheduler-plugins' controller would write them.

    "" -> Pending -> Scheduling (pods >= minMember) -> Running (running + succeeded >= minMember)
       -> Finished (succeeded >= minMember), or Failed (any failed, failed + running + succeeded >= minMember)

Always computed from the pods there are, so nothing is final while a job restarts its pods; once no pod is left, the
end that was reached stands. Where somebody else writes the status (that controller is installed), it is left to them.
"""

from extender.effects import SetPodGroupStatus
from extender.gangs import Gang
from extender.timers import Timer
from extender.world import World
from kube.objects.pod_group import PodGroup, PodGroupStatus

PAUSE = 1.0
"""One write for what changes within it."""
REMEMBERED = 8
"""Own writes that may still come back through the watch."""
_ENDS = frozenset({"Finished", "Failed"})


def seen(world: World, key: str, group: PodGroup, now: float) -> None:
    """The PodGroup came or changed. A status that was not asked for here is somebody else's; but not while another
    extender leads, nor just after it, when its last writes may still come."""
    former = world.pod_groups.get(key)
    if former is not None and former.metadata.uid != group.metadata.uid:
        gone(world, key)
        former = None
    world.pod_groups[key] = group
    if former is not None and former.status != group.status:
        ours = group.status in world.group_writes.get(key, ())
        if world.deciding and now >= world.judge_from and not ours:
            world.group_writers.add(key)
    _set_timer(world, key, now)


def gone(world: World, key: str) -> None:
    world.pod_groups.pop(key, None)
    world.group_writes.pop(key, None)
    world.group_writers.discard(key)
    world.timers.clear(Timer.GROUP, key)


def soon(world: World, gang: Gang, now: float) -> None:
    """Members have changed."""
    key = f"{gang.namespace}/{gang.name}"
    if gang.hub is not None and world.group_of_hub.get(gang.key) != key:
        forget(world, gang, now)
        world.group_of_hub[gang.key] = key
        world.hub_gangs.setdefault(key, {})[gang.key] = None
    _set_timer(world, key, now)


def forget(world: World, gang: Gang, now: float) -> None:
    """The last of the gang has gone; its PodGroup may stay."""
    key = world.group_of_hub.pop(gang.key, f"{gang.namespace}/{gang.name}")
    attempts = world.hub_gangs.get(key)
    if attempts is not None:
        attempts.pop(gang.key, None)
        if not attempts:
            del world.hub_gangs[key]
    _set_timer(world, key, now)


def all_again(world: World, now: float) -> None:
    """A new leader: what the former one did not get to write."""
    world.group_writes.clear()
    world.group_writers.clear()
    for key in world.pod_groups:
        _set_timer(world, key, now)


def write(world: World, key: str) -> None:
    """`key`: namespace/name of the PodGroup."""
    group = world.pod_groups.get(key)
    if group is None or key in world.group_writers:
        return
    status = _status(world, _gang_of(world, key), group)
    if status == group.status:
        return
    world.group_writes[key] = (*world.group_writes.get(key, ())[1 - REMEMBERED :], status)
    meta = group.metadata
    world.emit(
        SetPodGroupStatus(
            namespace=meta.namespace, name=meta.name, resource_version=meta.resource_version, status=status
        )
    )


def _set_timer(world: World, key: str, now: float) -> None:
    if world.config.write_pod_group_status and key in world.pod_groups:
        world.timers.set_earliest(Timer.GROUP, key, now + PAUSE)


def _gang_of(world: World, key: str) -> Gang | None:
    """The user's gang of this name, or the latest attempt of the hub's that has pods."""
    attempts = [world.gangs[attempt] for attempt in world.hub_gangs.get(key, ()) if attempt in world.gangs]
    with_pods = [gang for gang in attempts if gang.members]
    return world.gangs.get(key) or max(
        with_pods or attempts, key=lambda gang: gang.hub.epoch if gang.hub is not None else 0, default=None
    )


def _status(world: World, gang: Gang | None, group: PodGroup) -> PodGroupStatus:
    members = list(gang.members.values()) if gang is not None else []
    departed = sum(gang.departed.values()) if gang is not None else 0
    if not members and not departed and group.status.phase in _ENDS:
        return group.status
    running = sum(1 for member in members if not member.finished and world.pods[member.ref.uid].running)
    succeeded = sum(1 for member in members if member.succeeded) + departed
    failed = sum(1 for member in members if member.finished and not member.succeeded)
    scheduled = sum(1 for member in members if member.node) + departed
    minimum = max(1, gang.min_member if gang is not None else group.spec.min_member)
    if succeeded >= minimum:
        phase = "Finished"
    elif failed and failed + running + succeeded >= minimum:
        phase = "Failed"
    elif running + succeeded >= minimum:
        phase = "Running"
    elif len(members) + departed >= minimum:
        phase = "Scheduling"
    else:
        phase = "Pending"
    return PodGroupStatus(
        phase=phase,
        scheduled=scheduled,
        running=running,
        succeeded=succeeded,
        failed=failed,
        occupied_by=group.status.occupied_by,
        schedule_start_time=group.status.schedule_start_time,
    )
