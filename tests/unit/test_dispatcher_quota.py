"""K1-K7, K9, K10, K18 of public quota implementations' faults, each by name, and the ledger against random streams."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from dispatcher.quota import Ask, Entry, Ledger, ask_for, charge_of, home_of
from dispatcher.quota_tree import MAX_JOBS, NO_TREE, Tree, ancestors
from kube.objects.binding import Charge
from kube.objects.quantity import QuantityError
from kube.objects.resources import add
from tests.unit.dispatcher_objects import ROOT, A, B, a_ledger, a_tree, an_ask, example, quota_node

CPU = "cpu"


def team_tree(**limits: Any) -> Any:
    """root 15 CPU; a and b without limits of their own, unless given."""
    return quota_node(
        "root",
        quota_node("a", namespaces=["a"], **limits.get("a", {})),
        quota_node("b", namespaces=["b"], **limits.get("b", {})),
        min={"cpu": 15},
        max={"cpu": 15},
    )


def message(ledger: Ledger, ask: Ask) -> str:
    blocked = ledger.blocked(ask)
    return blocked.message if blocked else ""


# --- admission


def test_the_examples_leaf_runs_one_job_at_a_time() -> None:
    ledger = a_ledger(example("elasticquotatree.yaml")["spec"]["root"])
    child = ("root", "child-2")
    job = an_ask(child, cpu=4010, memory=4 << 30)

    assert message(ledger, job) == ""
    ledger.charge("one", job)
    assert message(ledger, job) == "queue root/child-2: max-jobs 1 of 1 used"
    ledger.release("one")
    assert message(ledger, job) == ""


def test_k1_a_limit_of_many_gib_is_enforced_to_the_byte() -> None:
    ledger = a_ledger(quota_node("root", quota_node("a", max={"memory": "100Gi"})))

    assert message(ledger, an_ask(A, memory=100 << 30)) == ""
    assert message(ledger, an_ask(A, memory=(100 << 30) + 1)) == (
        "queue root/a: memory 107374182401 asked, 0 of 100Gi used"
    )


def test_k2_two_leaves_never_exceed_their_parent() -> None:
    """Root max 15; 10 in one leaf leave 5 for the other."""
    ledger = a_ledger(team_tree())
    ledger.charge("first", an_ask(A, cpu=10_000))

    assert message(ledger, an_ask(B, cpu=10_000)) == "queue root: cpu 10 asked, 10 of 15 used"
    assert message(ledger, an_ask(B, cpu=5_000)) == ""


def test_k3_max_binds_non_preemptible_jobs_too() -> None:
    ledger = a_ledger(team_tree(a={"max": {"cpu": 4, MAX_JOBS: 1}, "min": {"cpu": 4}}))
    job = an_ask(A, cpu=2000, preemptible=False)

    assert message(ledger, an_ask(A, cpu=5000, preemptible=False)) == "queue root/a: cpu 5 asked, 0 of 4 used"
    ledger.charge("one", job)
    assert message(ledger, job) == "queue root/a: max-jobs 1 of 1 used"


def test_k3_non_preemptible_jobs_live_within_min() -> None:
    ledger = a_ledger(team_tree(a={"min": {"cpu": 4}}))
    ledger.charge("borrower", an_ask(A, cpu=6000))

    job = an_ask(A, cpu=3000, preemptible=False)
    assert message(ledger, job) == ""
    ledger.charge("one", job)
    assert message(ledger, job) == "queue root/a: cpu 3 asked, 3 of 4 guaranteed used"
    assert message(ledger, an_ask(A, gpu=1)) == ""


def test_k3_a_leaf_without_min_guarantees_nothing() -> None:
    ledger = a_ledger(team_tree())

    assert message(ledger, an_ask(A, cpu=1, preemptible=False)) == "queue root/a: cpu 1m asked, 0 of 0 guaranteed used"
    assert message(ledger, an_ask(A, preemptible=False)) == ""


def test_k9_a_job_that_asks_for_nothing_counts_as_one() -> None:
    ledger = a_ledger(team_tree(a={"max": {MAX_JOBS: 1}}))

    assert message(ledger, an_ask(A)) == ""
    ledger.charge("idle", an_ask(A))
    assert message(ledger, an_ask(A)) == "queue root/a: max-jobs 1 of 1 used"
    assert message(ledger, an_ask(B)) == ""
    assert ledger.used(ROOT) == {MAX_JOBS: 1}


def test_a_limit_lowered_below_use_stops_new_use_of_that_resource_only() -> None:
    ledger = a_ledger(team_tree())
    ledger.charge("big", an_ask(A, cpu=10_000))

    ledger.retree(a_tree(team_tree(a={"max": {"cpu": 4}})))

    assert ledger.used(A)[CPU] == 10_000
    assert message(ledger, an_ask(A, cpu=1)) == "queue root/a: cpu 1m asked, 10 of 4 used"
    assert message(ledger, an_ask(A, memory=1)) == ""
    assert ledger.room(A, CPU) == -6000


def test_only_leaves_take_jobs() -> None:
    ledger = a_ledger(team_tree())

    assert message(ledger, an_ask(ROOT, cpu=1)) == "queue root: not a leaf of the quota tree"
    assert message(ledger, an_ask(("root", "gone"), cpu=1)) == "queue root/gone: not a leaf of the quota tree"


# --- what is charged is given back


def test_charging_twice_counts_once_and_differently_is_an_error() -> None:
    ledger = a_ledger(team_tree())
    ledger.charge("one", an_ask(A, cpu=1000))
    ledger.charge("one", an_ask(A, cpu=1000))

    assert ledger.used(ROOT)[CPU] == 1000
    with pytest.raises(ValueError, match="binding one is charged"):
        ledger.charge("one", an_ask(B, cpu=1000))
    assert ledger.used(ROOT)[CPU] == 1000


def test_k10_release_is_exact_and_only_once() -> None:
    ledger = a_ledger(team_tree())
    ledger.charge("one", an_ask(A, cpu=1000, memory=7))

    assert ledger.release("one") is not None
    assert ledger.release("one") is None
    assert ledger.used(ROOT) == ledger.used(A) == {}


def test_a_charge_survives_the_record_exactly() -> None:
    ask = ask_for(A, {CPU: 4010, "memory": (400 << 30) + 1, "nvidia.com/gpu": 3, "x/zero": 0}, preemptible=False)

    charge = charge_of(ask)
    assert charge == Charge(
        path=["root", "a"],
        amounts={"cpu": "4010m", "kube-queue/max-jobs": "1", "memory": "429496729601", "nvidia.com/gpu": "3"},
        non_preemptible=True,
    )
    ledger = a_ledger(team_tree())
    ledger.charge_recorded("one", charge)
    ledger.charge("one", ask)
    assert ledger.entries()["one"].amounts == ask.amounts


def test_a_damaged_record_is_told() -> None:
    with pytest.raises(QuantityError, match="cpu"):
        a_ledger(team_tree()).charge_recorded("one", Charge(path=["root"], amounts={"cpu": "lots"}))


# --- the tree changes under live jobs


def test_k5_a_job_is_released_where_it_was_charged_after_its_namespace_moved() -> None:
    ledger = a_ledger(team_tree())
    ledger.charge("one", an_ask(A, cpu=1000))

    moved = team_tree()
    moved["children"][0]["namespaces"], moved["children"][1]["namespaces"] = [], ["a", "b"]
    ledger.retree(a_tree(moved))
    assert (ledger.used(A).get(CPU), ledger.used(B)) == (1000, {})

    ledger.release("one")
    assert ledger.used(A) == ledger.used(B) == ledger.used(ROOT) == {}


def test_k6_a_leaf_that_disappears_is_charged_above_until_its_jobs_end() -> None:
    ledger = a_ledger(team_tree())
    ledger.charge("one", an_ask(A, cpu=10_000))

    ledger.retree(a_tree(quota_node("root", quota_node("b"), min={"cpu": 15}, max={"cpu": 15})))

    assert message(ledger, an_ask(B, cpu=6000)) == "queue root: cpu 6 asked, 10 of 15 used"
    ledger.release("one")
    assert message(ledger, an_ask(B, cpu=6000)) == ""


def test_k6_without_any_tree_nothing_crashes_and_nothing_is_lost() -> None:
    ledger = a_ledger(team_tree())
    ledger.charge("one", an_ask(A, cpu=1000))

    ledger.retree(NO_TREE)
    assert ledger.blocked(an_ask(A, cpu=1)) is not None
    ledger.charge("two", an_ask(B, cpu=2000))
    ledger.retree(a_tree(team_tree()))

    assert ledger.used(ROOT)[CPU] == 3000
    assert ledger.used(B)[CPU] == 2000


def test_k7_a_tree_edit_keeps_jobs_in_flight() -> None:
    ledger = a_ledger(team_tree(a={"max": {MAX_JOBS: 1}}))
    ledger.charge("reserving", an_ask(A, cpu=1))

    ledger.retree(a_tree(team_tree(a={"max": {MAX_JOBS: 1}})))

    assert message(ledger, an_ask(A, cpu=1)) == "queue root/a: max-jobs 1 of 1 used"


def test_use_follows_a_leaf_that_moves_to_another_parent() -> None:
    def under(parent: str) -> Any:
        leaf = quota_node("leaf", max={"cpu": 4})
        return quota_node("root", *(quota_node(name, *([leaf] if name == parent else [])) for name in ("x", "y")))

    ledger = a_ledger(under("x"))
    ledger.charge("one", an_ask(("root", "x", "leaf"), cpu=3000))
    ledger.retree(a_tree(under("y")))

    assert ledger.used(("root", "x")) == {}
    assert ledger.used(("root", "y", "leaf"))[CPU] == 3000
    assert message(ledger, an_ask(("root", "y", "leaf"), cpu=2000)) == "queue root/y/leaf: cpu 2 asked, 3 of 4 used"
    ledger.release("one")
    assert ledger.used(ROOT) == {}


# --- lending


def lending(limit: str) -> Any:
    """a has min 6 of 10 CPU and lends `limit` of it."""
    return quota_node(
        "root",
        quota_node("a", min={"cpu": 6}, attributes={"alibabacloud.com/lendlimit": f'{{"cpu": "{limit}"}}'}),
        quota_node("b"),
        min={"cpu": 10},
        max={"cpu": 10},
    )


def test_what_is_not_lent_stays_free_for_its_owner() -> None:
    """a lends 2 of 6: b can have 4 of its own plus those 2."""
    ledger = a_ledger(lending("2"))

    assert message(ledger, an_ask(B, cpu=6000)) == ""
    assert message(ledger, an_ask(B, cpu=6001)) == "queue root: cpu 6001m asked, 4 of 10 used"
    ledger.charge("borrower", an_ask(B, cpu=6000))
    assert ledger.room(B, CPU) == 0
    assert ledger.room(A, CPU) == 4000
    ledger.charge("owner", an_ask(A, cpu=4000))
    assert ledger.used(ROOT)[CPU] == 10_000
    assert message(ledger, an_ask(A, cpu=1)) == "queue root: cpu 1m asked, 10 of 10 used"


def test_what_is_held_back_never_lets_true_use_exceed_the_max() -> None:
    """A tree edit made a borrower out of a job that was none: 4 + 6 held back are more than the root's 6 already."""
    ledger = a_ledger(team_tree())
    ledger.charge("one", an_ask(A, cpu=4000))
    keeper = quota_node("b", min={"cpu": 6}, attributes={"alibabacloud.com/lendlimit": '{"cpu": 0}'})

    ledger.retree(a_tree(quota_node("root", quota_node("a"), keeper, min={"cpu": 6}, max={"cpu": 6})))

    assert message(ledger, an_ask(B, cpu=2001)) == "queue root: cpu 2001m asked, 4 of 6 used"
    assert message(ledger, an_ask(B, cpu=2000)) == ""
    assert ledger.room(B, CPU) == 2000


def test_nothing_lent_is_a_fixed_share_and_everything_lent_is_none() -> None:
    assert a_ledger(lending("0")).room(B, CPU) == 4000
    assert a_ledger(lending("6")).room(B, CPU) == 10_000
    assert a_ledger(lending("9")).room(B, CPU) == 10_000


def test_lent_parts_reach_through_levels() -> None:
    """The leaf keeps 3 back from its department, which passes that on to the root."""
    leaf = quota_node("leaf", min={"cpu": 3}, attributes={"alibabacloud.com/lendlimit": '{"cpu": 0}'})
    ledger = a_ledger(
        quota_node("root", quota_node("dept", leaf, min={"cpu": 3}), quota_node("b"), min={"cpu": 10}, max={"cpu": 10})
    )

    assert ledger.room(B, CPU) == 7000
    ledger.charge("one", an_ask(("root", "dept", "leaf"), cpu=2000))
    assert ledger.room(B, CPU) == 7000
    ledger.charge("two", an_ask(("root", "dept", "leaf"), cpu=2000))
    assert ledger.room(B, CPU) == 6000
    ledger.release("one")
    ledger.release("two")
    assert ledger.room(B, CPU) == 7000


# --- shares and holds


def test_shares_and_borrowing() -> None:
    leaf = quota_node("a", min={"cpu": 4, "memory": "8Gi"})
    ledger = a_ledger(quota_node("root", leaf, quota_node("b"), min={"cpu": 4, "memory": "8Gi"}, max=leaf["min"]))

    assert ledger.share(A) == 0
    assert ledger.share(B) == float("inf")
    ledger.charge("one", an_ask(A, cpu=2000, memory=6 << 30))
    assert ledger.share(A) == 0.75
    assert ledger.borrowed(A) == {}
    ledger.charge("two", an_ask(A, cpu=3000, gpu=1))
    assert ledger.borrowed(A) == {"cpu": 1000, "nvidia.com/gpu": 1}


def test_f12_room_held_for_a_claimant_goes_to_nobody_else() -> None:
    ledger = a_ledger(team_tree())
    claimant = an_ask(B, cpu=10_000)
    ledger.charge("victim", an_ask(A, cpu=10_000))
    ledger.hold("claimant", claimant)
    ledger.release("victim")

    assert message(ledger, an_ask(A, cpu=10_000)) == "queue root: cpu 10 asked, 10 of 15 used"
    assert message(ledger, an_ask(A, cpu=5_000)) == ""
    assert ledger.blocked(claimant, "claimant") is None
    assert ledger.unhold("claimant")
    assert not ledger.unhold("claimant")
    assert message(ledger, an_ask(A, cpu=10_000)) == ""


def test_holds_survive_a_tree_edit() -> None:
    ledger = a_ledger(team_tree())
    ledger.hold("claimant", an_ask(B, cpu=10_000))

    ledger.retree(a_tree(team_tree()))

    assert ledger.blocked(an_ask(A, cpu=10_000)) is not None
    ledger.unhold("claimant")
    assert ledger.blocked(an_ask(A, cpu=10_000)) is None


# --- random trees, jobs and edits

RESOURCES = ("memory", "rdma/hca", "nvidia.com/gpu", MAX_JOBS)
amounts_of = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 6), max_size=4)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Trees of up to seven nodes with names from a small pool, so that edits move, drop and bring back leaves."""
    names = draw(st.permutations(["a", "b", "c", "d", "e", "f"]))[: draw(st.integers(1, 6))]
    children: dict[str, list[str]] = {"root": []}
    for name in names:
        parent = draw(st.sampled_from(sorted(children)))
        children[parent].append(name)
        children[name] = []

    def node(name: str) -> dict[str, Any]:
        below = [node(child) for child in children[name]]
        least = {r: sum(child["min"].get(r, 0) for child in below) for r in RESOURCES}
        least = {r: n + draw(st.integers(0, 2)) for r, n in least.items() if n or draw(st.booleans())}
        most = {r: least.get(r, 0) + draw(st.integers(0, 6)) for r in RESOURCES if draw(st.booleans())}
        attributes = {}
        if draw(st.booleans()):
            attributes["alibabacloud.com/lendlimit"] = f'{{"nvidia.com/gpu": {draw(st.integers(0, 3))}}}'
        if name == "root":
            most = least = {r: n for r, n in {**least, **most}.items() if n >= least.get(r, 0)}
        return quota_node(name, *below, min=least, max=most, attributes=attributes)

    return a_tree(node("root"))


def recomputed(tree: Tree, entries: Iterable[Entry]) -> dict[tuple[str, ...], dict[str, int]]:
    """Use of every node from scratch."""
    use: dict[tuple[str, ...], dict[str, int]] = {path: {} for path in tree.nodes}
    for entry in entries:
        for path in ancestors(home_of(tree, entry.charged_at)):
            use[path] = add(use[path], entry.amounts)
    return use


class LedgerFollowsEveryStream(RuleBasedStateMachine):
    """Invariant: no use is negative, use is the sum of live jobs, and no admission ever exceeds a max."""

    jobs: Bundle[str] = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(NO_TREE)
        self.count = 0

    @rule(tree=trees())
    def edit_the_tree(self, tree: Tree) -> None:
        self.ledger.retree(tree)

    @rule(target=jobs, data=st.data(), amounts=amounts_of, preemptible=st.booleans())
    def try_to_admit(self, data: st.DataObject, amounts: dict[str, int], preemptible: bool) -> str:
        self.count += 1
        binding_id = f"job-{self.count}"
        leaves = [path for path in self.ledger.tree.nodes if self.ledger.tree.is_leaf(path)]
        if leaves:
            path = data.draw(st.sampled_from(leaves))
            ask = ask_for(path, {**amounts, MAX_JOBS: 0}, preemptible=preemptible)
            before = {node: self.ledger.used(node) for node in self.ledger.tree.nodes}
            if self.ledger.blocked(ask) is None:
                self.ledger.charge(binding_id, ask)
                self.check_limits(path, ask, before)
        return binding_id

    def check_limits(self, path: tuple[str, ...], ask: Ask, before: dict[tuple[str, ...], dict[str, int]]) -> None:
        for length in range(1, len(path) + 1):
            node = self.ledger.tree.nodes[path[:length]]
            used = self.ledger.used(node.path)
            for resource, units in ask.amounts.items():
                assert used[resource] == before[node.path].get(resource, 0) + units
                assert used[resource] <= node.max.get(resource, used[resource])

    @rule(job=consumes(jobs))
    def end(self, job: str) -> None:
        self.ledger.release(job)
        assert self.ledger.release(job) is None

    @rule(job=jobs)
    def restart_from_the_records(self, job: str) -> None:
        fresh = Ledger(self.ledger.tree)
        for binding_id, entry in reversed(list(self.ledger.entries().items())):
            ask = Ask(path=entry.charged_at, amounts=entry.amounts, preemptible=entry.preemptible)
            fresh.charge_recorded(binding_id, charge_of(ask))
        assert fresh.entries() == self.ledger.entries()
        for path in fresh.tree.nodes:
            assert fresh.used(path) == self.ledger.used(path)
            assert [fresh.room(path, r) for r in RESOURCES] == [self.ledger.room(path, r) for r in RESOURCES]
        self.ledger = fresh

    @invariant()
    def use_is_the_sum_of_live_jobs(self) -> None:
        expected = recomputed(self.ledger.tree, self.ledger.entries().values())
        for path in self.ledger.tree.nodes:
            used = self.ledger.used(path)
            assert used == expected[path]
            assert all(units > 0 for units in used.values())

    @invariant()
    def what_is_not_lent_counts_as_charged(self) -> None:
        """From scratch: a node is charged its own jobs and, per child, at least what the child holds back."""
        tree = self.ledger.tree
        for resource in RESOURCES:
            charged: dict[tuple[str, ...], int] = dict.fromkeys(tree.nodes, 0)
            for entry in self.ledger.entries().values():
                if entry.home:
                    charged[entry.home] += entry.amounts.get(resource, 0)
            for path in reversed(tree.nodes):
                if len(path) > 1:
                    charged[path[:-1]] += max(charged[path], tree.nodes[path].held_back(resource))
            root = tree.nodes.get(ROOT)
            if root is not None and resource in root.max:
                assert self.ledger.room(ROOT, resource) == root.max[resource] - charged[ROOT]

    @invariant()
    def room_is_what_is_admitted_and_not_one_more(self) -> None:
        for path in self.ledger.tree.nodes:
            if not self.ledger.tree.is_leaf(path):
                continue
            for resource in RESOURCES:
                room = self.ledger.room(path, resource)
                if room is None:
                    assert self.ledger.blocked(Ask(path=path, amounts={resource: 1 << 62})) is None
                else:
                    assert room <= 0 or self.ledger.blocked(Ask(path=path, amounts={resource: room})) is None
                    assert self.ledger.blocked(Ask(path=path, amounts={resource: max(0, room) + 1})) is not None


LedgerFollowsEveryStream.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestLedgerFollowsEveryStream = LedgerFollowsEveryStream.TestCase
