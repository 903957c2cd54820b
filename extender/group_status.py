"""Phase and counts of a user's PodGroup, as scheduler-plugins' controller would write them.

    "" -> Pending -> Scheduling (pods >= minMember) -> Running (running + succeeded >= minMember)
       -> Finished (succeeded >= minMember), or Failed (any failed, failed + running + succeeded >= minMember)

Always computed from the pods there are, so nothing is final while a job restarts its pods. Where somebody else writes
the status (that controller is installed), it is left to them.
"""

from extender.effects import SetPodGroupStatus
from extender.gangs import Gang
from extender.timers import Timer
from extender.world import World
from kube.objects.pod_group import PodGroup, PodGroupStatus

PAUSE = 1.0
"""One write for what changes within it."""


def seen(world: World, key: str, group: PodGroup) -> None:
    """The PodGroup came or changed."""
    former = world.pod_groups.get(key)
    world.pod_groups[key] = group
    if former is not None and former.metadata.uid == group.metadata.uid and former.status != group.status:
        if group.status == world.group_writes.get(key):
            return
        world.group_writers.add(key)


def gone(world: World, key: str) -> None:
    world.pod_groups.pop(key, None)
    world.group_writes.pop(key, None)
    world.group_writers.discard(key)
    world.timers.clear(Timer.GROUP, key)


def soon(world: World, gang: Gang, now: float) -> None:
    """Members have changed."""
    if gang.hub is None and world.config.write_pod_group_status and gang.key in world.pod_groups:
        world.timers.set_earliest(Timer.GROUP, gang.key, now + PAUSE)


def write(world: World, key: str) -> None:
    group = world.pod_groups.get(key)
    if group is None or key in world.group_writers:
        return
    status = _status(world, world.gangs.get(key), group)
    if status == group.status:
        return
    world.group_writes[key] = status
    meta = group.metadata
    world.emit(
        SetPodGroupStatus(
            namespace=meta.namespace, name=meta.name, resource_version=meta.resource_version, status=status
        )
    )


def _status(world: World, gang: Gang | None, group: PodGroup) -> PodGroupStatus:
    members = list(gang.members.values()) if gang is not None else []
    running = sum(1 for member in members if not member.finished and world.pods[member.ref.uid].running)
    succeeded = sum(1 for member in members if member.succeeded)
    failed = sum(1 for member in members if member.finished and not member.succeeded)
    scheduled = sum(1 for member in members if member.node)
    minimum = max(1, gang.min_member if gang is not None else group.spec.min_member)
    if succeeded >= minimum:
        phase = "Finished"
    elif failed and failed + running + succeeded >= minimum:
        phase = "Failed"
    elif running + succeeded >= minimum:
        phase = "Running"
    elif len(members) >= minimum:
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
