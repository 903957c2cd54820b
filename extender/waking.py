"""Refused pods are patched when their gang becomes possible: the creation of a sibling or a plan wakes nobody else.

Gangs are woken one after the other, so that a node that comes back does not bring every waiting pod in one instant.
"""

from extender.effects import WakePods
from extender.gangs import Gang
from extender.timers import Timer
from extender.world import World

ROOM = "there is room for the whole gang"


def room_found(world: World, gang: Gang, now: float) -> None:
    """The refused members may come again."""
    if not gang.refused:
        return
    world.wake_from = max(now, world.wake_from + world.config.wake_spread)
    world.timers.set_earliest(Timer.WAKE, gang.key, world.wake_from)


def later(world: World, gang: Gang, seconds: float, now: float) -> None:
    """Refused for a passing reason that no event ends."""
    world.timers.set_earliest(Timer.WAKE, gang.key, now + seconds)


def wake(world: World, gang: Gang) -> None:
    """Time to do so."""
    pods = tuple(
        member.ref
        for uid in gang.refused
        if (member := gang.members.get(uid)) is not None and member.call is None and not member.node
    )
    gang.refused.clear()
    if pods:
        world.emit(WakePods(pods=pods, reason=ROOM))
