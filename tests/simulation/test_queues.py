"""Queues of the whole dispatcher, in virtual time: who gets the room, who gives it back, who never starves."""

from tests.simulation.clock import settled, until, virtual
from tests.simulation.whole_hub import WholeHub, node


def teams(a: int = 4, b: int = 4) -> dict:
    leaves = [
        node("a", min=a, namespaces=["team-a"]),
        node("b", min=b, namespaces=["team-b"]),
    ]
    return node("root", *leaves, min=a + b, max=a + b)


def two_teams(**options) -> WholeHub:
    world = WholeHub(members={"m1": (8, 1)}, **options)
    world.namespace("team-a")
    world.namespace("team-b")
    world.tree(teams())
    return world


@virtual
async def test_borrowed_quota_is_given_back_whole_and_the_victim_runs_later():
    world = two_teams()
    async with world.running():
        for n in range(4):
            world.submit("team-a", f"a{n}", pods=2)
            await settled(3)
        assert world.in_phase("Running") == ["a0", "a1", "a2", "a3"]
        world.submit("team-b", "b0", pods=2, run_for=60)
        await until(lambda: world.phase("team-b", "b0") == "Running", 60)
        assert world.in_phase("Running") == ["a0", "a1", "a2", "b0"]
        assert world.phase("team-a", "a3") == "Queued"
        assert world.charged()["root"] == 8
        await until(lambda: world.phase("team-b", "b0") == "Succeeded", 120)
        await until(lambda: world.phase("team-a", "a3") == "Running", 60)
