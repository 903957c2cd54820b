"""How big gangs get their turn: a claim on the nodes that free soonest (to be filled by the planner of claims)."""

from extender.gangs import Gang
from extender.world import World


def ended(world: World, gang: Gang, now: float) -> None:
    """The claim's time is over: its nodes are open again, and no new claim is made for a while."""
    if world.claims.pop(gang.key, None) is not None:
        world.claim_rest = now + world.config.claim_pause
    world.touch(gang.key)
