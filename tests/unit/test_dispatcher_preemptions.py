"""Reclaiming over time: one victim set per claimant, and what it frees is spent once."""

from dispatcher.preemptions import Preemptions, ReclaimSettings
from dispatcher.quota import Ledger
from dispatcher.reclaim import Admitted, beyond_limits
from tests.unit.dispatcher_objects import A, B, a_ledger, a_waiting, an_ask, quota_node

GPU = "nvidia.com/gpu"
SETTINGS = ReclaimSettings(hold=600, rest=300)


def two_teams(a: int = 4, b: int = 4) -> Ledger:
    leaves = [quota_node("a", min={GPU: a}), quota_node("b", min={GPU: b})]
    return a_ledger(quota_node("root", *leaves, min={GPU: a + b}, max={GPU: a + b}))


class World:
    """Team A runs four jobs of 2 GPUs: all 8, four of them borrowed."""

    def __init__(self) -> None:
        self.ledger = two_teams()
        self.going: set[str] = set()
        self.preemptions = Preemptions(SETTINGS)
        for n in range(4):
            self.ledger.charge(f"a{n}", an_ask(A, gpu=2))

    def admitted(self) -> list[Admitted]:
        return [
            Admitted(binding_id=id_, priority=0, admitted_at=f"t-{id_}", in_flight=id_ in self.going)
            for id_ in self.ledger.entries()
        ]

    def claim(self, name: str, gpu: int = 2, now: float = 0, path: tuple[str, ...] = B) -> tuple[str, ...]:
        waiting = a_waiting(name, an_ask(path, gpu=gpu), gpu=gpu)
        found = self.preemptions.choose(waiting, self.ledger, self.admitted, now)
        if found.victims:
            self.preemptions.begin(waiting, found.victims, self.ledger, now)
            self.going |= set(found.victims)
        return found.victims

    def gone(self, victim: str, now: float = 0) -> None:
        self.ledger.release(victim)
        self.going.discard(victim)
        self.preemptions.released(victim, self.ledger, now)

    def may_enter(self, name: str, path: tuple[str, ...], gpu: int = 2) -> bool:
        return self.ledger.blocked(an_ask(path, gpu=gpu), name) is None


def test_f12_one_victim_set_in_flight_per_claimant() -> None:
    world = World()
    assert world.claim("b0") == ("a3",)
    assert world.claim("b0") == ()


def test_f12_what_was_freed_is_kept_for_the_claimant_and_spent_once() -> None:
    world = World()
    world.claim("b0")
    world.gone("a3")
    assert not world.may_enter("a3", A)  # the victim itself, queued again
    assert not world.may_enter("b9", B)  # nor another job of the claimant's queue
    assert world.may_enter("b0", B)
    world.preemptions.charged("b0", world.ledger)
    world.ledger.charge("b0", an_ask(B, gpu=2))
    world.preemptions.end("b0", world.ledger)
    assert not world.ledger.holds()
    assert world.ledger.used(("root",))[GPU] == 8


def test_together_claimants_take_no_more_than_their_guarantee() -> None:
    """B's min is 4: two claimants of 2 take one victim each, the third none, though none of them has landed yet."""
    world = World()
    assert [world.claim(name) for name in ("b0", "b1", "b2")] == [("a3",), ("a2",), ()]


def test_f12_a_claimant_that_is_refused_by_a_member_keeps_its_room() -> None:
    world = World()
    world.claim("b0")
    world.gone("a3")
    world.preemptions.charged("b0", world.ledger)
    world.ledger.charge("b0", an_ask(B, gpu=2))
    world.ledger.release("b0")
    world.preemptions.released("b0", world.ledger, 5)
    assert not world.may_enter("a3", A)
    assert world.may_enter("b0", B)


def test_f12_a_claimant_that_cannot_use_its_room_gives_it_up_and_rests() -> None:
    world = World()
    world.claim("b0")
    assert world.preemptions.expire(world.ledger, 5_000) == []  # the victim is still ending
    world.gone("a3", now=5_000)
    assert world.preemptions.expire(world.ledger, 5_599) == []
    assert world.preemptions.expire(world.ledger, 5_600) == ["b0"]
    assert world.may_enter("a3", A)
    world.ledger.charge("a3", an_ask(A, gpu=2))
    assert world.claim("b0", now=5_899) == ()
    assert world.claim("b0", now=5_900) == ("a3",)
    world.gone("a3", now=6_000)
    assert world.preemptions.expire(world.ledger, 6_600) == ["b0"]
    world.ledger.charge("a3", an_ask(A, gpu=2))
    assert world.claim("b0", now=7_199) == ()  # twice as long as before
    assert world.claim("b0", now=7_200) == ("a3",)


def test_a_claimant_that_is_held_or_gone_leaves_nothing_behind() -> None:
    world = World()
    world.claim("b0")
    assert world.preemptions.end("b0", world.ledger)
    assert not world.ledger.holds()
    assert len(world.preemptions) == 0
    assert not world.preemptions.end("b0", world.ledger)


def test_a_victim_that_is_spared_ends_its_set() -> None:
    world = World()
    world.claim("b0")
    assert world.preemptions.spared("a3", world.ledger)
    assert not world.ledger.holds()
    assert not world.preemptions.spared("a3", world.ledger)


def test_of_jobs_that_are_alike_the_first_get_what_was_freed() -> None:
    """b2 claimed before the older b0 and b1 were seen."""
    world = World()
    world.claim("b2")
    world.claim("b1")
    order = ["b0", "b1", "b2", "b3"]
    assert world.preemptions.pass_on(lambda _: order, world.ledger) == ["b0"]
    assert set(world.ledger.holds()) == {"b0", "b1"}
    assert world.preemptions.pass_on(lambda _: order, world.ledger) == []
    assert world.preemptions.pass_on(lambda _: [], world.ledger) == []  # they do not wait any more


def test_a_borrower_claims_nothing() -> None:
    world = World()
    assert world.claim("a9", path=A) == ()
    assert world.claim("b0", gpu=6) == ()  # above its min


def test_lowered_limits_take_the_lowest_and_youngest_until_it_fits() -> None:
    """Root's max falls from 8 to 5 with four jobs of 2 running: two have to go."""
    ledger = a_ledger(quota_node("root", quota_node("a"), min={GPU: 5}, max={GPU: 5}))
    for n in range(4):
        ledger.charge(f"a{n}", an_ask(A, gpu=2))
    jobs = [Admitted(binding_id=f"a{n}", priority=int(n == 3), admitted_at=f"t{n}") for n in range(4)]
    assert list(beyond_limits(ledger, jobs)) == ["a2", "a1"]
    assert len(ledger.entries()) == 4
    going = [
        Admitted(binding_id=j.binding_id, priority=0, admitted_at="", in_flight=j.binding_id == "a0") for j in jobs
    ]
    assert len(beyond_limits(ledger, going)) == 1
    assert beyond_limits(two_teams(), []) == {}
