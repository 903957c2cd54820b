from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.quota import Ask, Ledger
from dispatcher.reclaim import Admitted, Reclaim, reclaim
from tests.unit.dispatcher_objects import A, B, a_ledger, an_ask, quota_node

C = ("root", "c")


def teams(**mins: int) -> Any:
    """Leaves with these min GPUs under a root that has their sum."""
    leaves = [quota_node(name, min={"nvidia.com/gpu": least}) for name, least in mins.items()]
    total = {"nvidia.com/gpu": sum(mins.values())}
    return quota_node("root", *leaves, min=total, max=total)


class Jobs:
    """Admitted jobs, in the order they were."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.admitted: list[Admitted] = []

    def run(self, name: str, path: tuple[str, ...], gpu: int, *, preemptible: bool = True, **kwargs: Any) -> None:
        self.ledger.charge(name, an_ask(path, gpu=gpu, preemptible=preemptible))
        at = f"t{len(self.admitted):03}"
        self.admitted.append(Admitted(**{"binding_id": name, "priority": 0, "admitted_at": at, **kwargs}))

    def reclaim(self, path: tuple[str, ...], gpu: int) -> Reclaim:
        before = dict(self.ledger.entries())
        decided = reclaim(an_ask(path, gpu=gpu), "claimant", self.ledger, self.admitted)
        assert self.ledger.entries() == before
        return decided


def test_the_youngest_borrower_gives_back_whole() -> None:
    jobs = Jobs(a_ledger(teams(a=4, b=4)))
    for n in range(4):
        jobs.run(f"a{n}", A, 2)

    decided = jobs.reclaim(B, 2)

    assert decided == Reclaim(
        victims=("a3",), reason="gives borrowed quota back to queue root/b, which is below its min"
    )
    assert jobs.reclaim(B, 4).victims == ("a3", "a2")


def test_lowest_priority_first_then_youngest_then_least_given_back() -> None:
    jobs = Jobs(a_ledger(teams(a=0, b=8)))
    jobs.run("high", A, 2, priority=5)
    jobs.run("low-old", A, 2, priority=1)
    jobs.run("low-big", A, 3, priority=1, admitted_at="t9")
    jobs.run("low-small", A, 1, priority=1, admitted_at="t9")

    assert jobs.reclaim(B, 1).victims == ("low-small",)
    assert jobs.reclaim(B, 4).victims == ("low-small", "low-big")
    assert jobs.reclaim(B, 8).victims == ("low-small", "low-big", "low-old", "high")


def test_a_victim_that_turns_out_to_be_needless_stays() -> None:
    """The youngest gives 1; the next gives 4, which is enough alone."""
    jobs = Jobs(a_ledger(teams(a=0, b=5)))
    jobs.run("big", A, 4)
    jobs.run("small", A, 1)

    assert jobs.reclaim(B, 4).victims == ("big",)


def test_nobody_gives_back_what_is_its_own() -> None:
    jobs = Jobs(a_ledger(teams(a=4, b=4, c=2)))
    jobs.run("own", A, 4)
    jobs.run("borrower", C, 4)

    assert jobs.reclaim(B, 3).victims == ("borrower",)
    assert jobs.reclaim(A, 3) == Reclaim(victims=(), reason="queue root: nvidia.com/gpu 3 asked, 8 of 10 used")


def test_what_quota_admits_needs_no_victims() -> None:
    jobs = Jobs(a_ledger(teams(a=4, b=4)))
    jobs.run("borrower", A, 6)

    assert jobs.reclaim(B, 2) == Reclaim(victims=(), reason="")


def test_only_who_stays_within_its_min_may_claim() -> None:
    jobs = Jobs(a_ledger(teams(a=4, b=4)))
    jobs.run("borrower", A, 8)

    assert jobs.reclaim(B, 5) == Reclaim(victims=(), reason="queue root: nvidia.com/gpu 5 asked, 8 of 8 used")
    assert jobs.reclaim(B, 4).victims == ("borrower",)


def test_non_preemptible_jobs_are_no_victims() -> None:
    jobs = Jobs(a_ledger(teams(a=4, b=4)))
    jobs.run("hard", A, 4, preemptible=False)
    jobs.run("soft", A, 4)

    assert jobs.reclaim(B, 4).victims == ("soft",)


def test_what_is_on_its_way_out_already_counts() -> None:
    jobs = Jobs(a_ledger(teams(a=4, b=4)))
    jobs.run("stays", A, 4)
    jobs.run("going", A, 4, in_flight=True)

    assert jobs.reclaim(B, 4) == Reclaim(victims=(), reason="queue root/b: waits for jobs that give back its quota")


def test_a_limit_of_ones_own_is_nobodys_fault() -> None:
    leaf = quota_node("b", min={"nvidia.com/gpu": 4}, max={"nvidia.com/gpu": 4, "kube-queue/max-jobs": 0})
    total = {"nvidia.com/gpu": 8}
    jobs = Jobs(a_ledger(quota_node("root", quota_node("a"), leaf, min=total, max=total)))
    jobs.run("borrower", A, 8)

    assert jobs.reclaim(B, 1) == Reclaim(victims=(), reason="queue root/b: max-jobs 0 of 0 used")


def test_a_sibling_within_the_departments_min_is_asked_and_a_stranger_is_not() -> None:
    """Department x is at its min as a whole; inside it, x1 borrowed from x2. y borrowed nothing."""
    x = quota_node(
        "x",
        quota_node("x1", min={"nvidia.com/gpu": 2}),
        quota_node("x2", min={"nvidia.com/gpu": 2}),
        min={"nvidia.com/gpu": 4},
    )
    y = quota_node("y", min={"nvidia.com/gpu": 4})
    total = {"nvidia.com/gpu": 8}
    jobs = Jobs(a_ledger(quota_node("root", x, y, min=total, max=total)))
    jobs.run("y", ("root", "y"), 4)
    jobs.run("x1-own", ("root", "x", "x1"), 2)
    jobs.run("x1-more", ("root", "x", "x1"), 2)

    assert jobs.reclaim(("root", "x", "x2"), 2).victims == ("x1-more",)


def test_a_department_above_its_min_takes_nothing_from_others() -> None:
    x = quota_node(
        "x",
        quota_node("x1"),
        quota_node("x2", min={"nvidia.com/gpu": 2}),
        min={"nvidia.com/gpu": 2},
    )
    total = {"nvidia.com/gpu": 4}
    jobs = Jobs(a_ledger(quota_node("root", x, quota_node("y"), min=total, max=total)))
    jobs.run("x1", ("root", "x", "x1"), 2)
    jobs.run("y-younger", ("root", "y"), 2)

    assert jobs.reclaim(("root", "x", "x2"), 2).victims == ("x1",)


# --- F12: no loops

LEAVES = {"a": A, "b": B, "c": C}


@settings(max_examples=200, deadline=None)
@given(
    mins=st.fixed_dictionaries({name: st.integers(0, 4) for name in LEAVES}),
    running=st.lists(st.tuples(st.sampled_from(sorted(LEAVES)), st.integers(1, 4), st.integers(0, 2)), max_size=8),
    claim=st.tuples(st.sampled_from(sorted(LEAVES)), st.integers(1, 4)),
)
def test_f12_a_victim_never_takes_back_and_every_set_is_enough_and_not_too_much(
    mins: dict[str, int], running: list[tuple[str, int, int]], claim: tuple[str, int]
) -> None:
    ledger = a_ledger(teams(**mins))
    jobs = Jobs(ledger)
    asks: dict[str, Ask] = {}
    for n, (leaf, gpu, priority) in enumerate(running):
        ask = an_ask(LEAVES[leaf], gpu=gpu)
        if ledger.blocked(ask) is None:
            jobs.run(f"j{n}", LEAVES[leaf], gpu, priority=priority)
            asks[f"j{n}"] = ask
    claimant = an_ask(LEAVES[claim[0]], gpu=claim[1])

    decided = reclaim(claimant, "claimant", ledger, jobs.admitted)

    if not decided.victims:
        return
    for spared in decided.victims:
        others = [victim for victim in decided.victims if victim != spared]
        for victim in others:
            ledger.release(victim)
        assert ledger.blocked(claimant) is not None, f"{spared} is needless"
        for victim in others:
            ledger.charge(victim, asks[victim])
    for victim in decided.victims:
        ledger.release(victim)
    assert ledger.blocked(claimant) is None
    ledger.charge("claimant", claimant)
    left = [job for job in jobs.admitted if job.binding_id not in decided.victims]
    newcomer = Admitted(binding_id="claimant", priority=-1, admitted_at="z")
    for victim in decided.victims:
        assert reclaim(asks[victim], victim, ledger, [*left, newcomer]).victims == ()
