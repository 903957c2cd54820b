"""The planner: all members at once, on what the nodes have left, or the largest fit in numbers."""

import time
from collections import Counter

import pytest

from extender.plan_question import Demand, Question
from extender.planner import Plan, fits_placed, plan
from extender.shortfall import Shortfall
from kube.objects.pods import Pod
from tests.unit.extender_objects import GPU, class_of, cluster, member, node, pod


def ask(*demands: tuple[str, Pod, int], minimum: int | None = None, **more) -> Question:
    """Demands (role, sample pod, count), all required unless `minimum` says how many in all."""
    return Question(
        tuple(
            Demand(role, class_of(sample), count if minimum is None else 0, count) for role, sample, count in demands
        ),
        min_total=sum(count for _, _, count in demands) if minimum is None else minimum,
        **more,
    )


def placed(question: Question, result: Plan | Shortfall) -> dict[tuple[str, str], int]:
    """(role, node) -> pods."""
    assert isinstance(result, Plan), str(result)
    counts: Counter[tuple[str, str]] = Counter()
    for index, where, count in result.places:
        counts[question.demands[index].role, where] += count
    return dict(counts)


class TestFit:
    def test_all_members_at_once(self):
        ledger, eligible = cluster(node("a", cpu=4), node("b", cpu=4))
        question = ask(("worker", pod("w", cpu="2"), 4))
        assert placed(question, plan(question, ledger, eligible)) == {("worker", "a"): 2, ("worker", "b"): 2}

    def test_a_sum_that_no_node_can_hold_is_no_fit(self):
        # 3 + 3 cpu free, but each pod needs 2: one per node.
        ledger, eligible = cluster(node("a", cpu=3), node("b", cpu=3))
        result = plan(ask(("worker", pod("w", cpu="2"), 3)), ledger, eligible)
        assert str(result) == "largest fit 2 of 3 pods: 1 short of cpu"

    def test_shortfall_in_numbers_names_the_device(self):
        ledger, eligible = cluster(*(node(f"n{i}", cpu=64, gpu=1) for i in range(7)))
        result = plan(ask(("worker", pod("w", gpu=1), 9)), ledger, eligible)
        assert str(result) == f"largest fit 7 of 9 pods: 2 short of {GPU}"

    def test_no_node_at_all(self):
        ledger, eligible = cluster()
        result = plan(ask(("worker", pod("w"), 1)), ledger, eligible)
        assert str(result) == "largest fit 0 of 1 pods: 1 blocked: no node is ready"

    def test_the_pod_count_of_a_node_is_a_resource(self):
        ledger, eligible = cluster(node("a", cpu=64, pods=3))
        result = plan(ask(("worker", pod("w", cpu="0", memory="0"), 4)), ledger, eligible)
        assert str(result) == "largest fit 3 of 4 pods: 1 short of pods"

    def test_minimum_of_an_elastic_gang(self):
        ledger, eligible = cluster(node("a", cpu=5))
        question = ask(("worker", pod("w", cpu="1"), 8), minimum=4)
        assert placed(question, plan(question, ledger, eligible)) == {("worker", "a"): 5}

    def test_elastic_below_minimum_holds_nothing(self):
        ledger, eligible = cluster(node("a", cpu=3))
        assert isinstance(plan(ask(("worker", pod("w"), 8), minimum=4), ledger, eligible), Shortfall)


class TestRoles:
    def test_unlike_roles_on_unlike_nodes(self):
        # A12: Master on the CPU node, workers on the GPU nodes.
        ledger, eligible = cluster(node("cpu", cpu=16), node("g1", cpu=8, gpu=8), node("g2", cpu=8, gpu=8))
        question = ask(("master", pod("m", cpu="4"), 1), ("worker", pod("w", cpu="8", gpu=8), 2))
        assert placed(question, plan(question, ledger, eligible)) == {
            ("master", "cpu"): 1,
            ("worker", "g1"): 1,
            ("worker", "g2"): 1,
        }

    def test_hardest_first(self):
        # The big pod fits only on the big node, which the small one would have taken.
        ledger, eligible = cluster(node("big", cpu=8), node("small", cpu=4))
        question = ask(("small", pod("s", cpu="4"), 1), ("big", pod("b", cpu="8"), 1))
        assert placed(question, plan(question, ledger, eligible)) == {("small", "small"): 1, ("big", "big"): 1}

    def test_whole_nodes_stay_free(self):
        # Two GPUs are left on the used node: the gang of two goes there and the whole node stays whole.
        ledger, eligible = cluster(node("whole", cpu=64, gpu=8), node("used", cpu=64, gpu=2))
        question = ask(("worker", pod("w", gpu=1), 2))
        assert placed(question, plan(question, ledger, eligible)) == {("worker", "used"): 2}

    def test_cpu_pods_leave_devices_to_others(self):
        ledger, eligible = cluster(node("gpu", cpu=4, gpu=8), node("plain", cpu=64))
        question = ask(("worker", pod("w", cpu="2"), 2))
        assert placed(question, plan(question, ledger, eligible)) == {("worker", "plain"): 2}


class TestConstraints:
    def test_taints_cordon_and_readiness(self):
        ledger, eligible = cluster(
            node("tainted", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]),
            node("cordoned", unschedulable=True),
            node("down", ready=False),
            node("good"),
        )
        question = ask(("worker", pod("w"), 2))
        assert placed(question, plan(question, ledger, eligible)) == {("worker", "good"): 2}

    def test_selector_that_nothing_matches_says_so(self):
        ledger, eligible = cluster(node("a"), node("b"))
        result = plan(ask(("worker", pod("w", spec={"nodeSelector": {"zone": "x"}}), 1)), ledger, eligible)
        assert str(result) == "largest fit 0 of 1 pods: 1 blocked: node(s) didn't match Pod's node affinity/selector"

    def test_one_pod_per_node_with_a_host_port(self):
        ported = pod("w", spec={"containers": [{"name": "c", "ports": [{"hostPort": 23456}]}]})
        ledger, eligible = cluster(node("a"), node("b"))
        question = ask(("worker", ported, 2))
        assert placed(question, plan(question, ledger, eligible)) == {("worker", "a"): 1, ("worker", "b"): 1}
        assert isinstance(plan(ask(("worker", ported, 3)), ledger, eligible), Shortfall)

    def test_required_anti_affinity_among_members(self):
        # A13.
        apart = {
            "affinity": {
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}
                    ]
                }
            }
        }
        ledger, eligible = cluster(node("a"), node("b"), node("c"))
        question = ask(("worker", pod("w", labels={"app": "x"}, spec=apart), 3))
        assert placed(question, plan(question, ledger, eligible)) == {("worker", n): 1 for n in "abc"}
        too_many = plan(ask(("worker", pod("w", labels={"app": "x"}, spec=apart), 4)), ledger, eligible)
        assert str(too_many) == ("largest fit 3 of 4 pods: 1 blocked: node(s) didn't match pod anti-affinity rules")

    def test_affinity_to_each_other_takes_a_zone_that_holds_all(self):
        # Zone x has the tighter node and would be first, but holds two only.
        together = {
            "affinity": {
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "zone"}
                    ]
                }
            }
        }
        ledger, eligible = cluster(
            node("x1", cpu=2, labels={"zone": "x"}),
            node("y1", cpu=3, labels={"zone": "y"}),
            node("y2", cpu=3, labels={"zone": "y"}),
        )
        question = ask(("worker", pod("w", labels={"app": "x"}, spec=together), 4))
        result = placed(question, plan(question, ledger, eligible))
        assert sum(result.values()) == 4
        assert all(where.startswith("y") for _, where in result)

    def test_preferred_topology_is_a_wish(self):
        nodes = [node(f"{zone}{i}", cpu=2, labels={"zone": zone}) for zone in "xy" for i in range(2)]
        ledger, eligible = cluster(*nodes)
        question = ask(("worker", pod("w"), 4), prefer_topology_key="zone")
        zones = {where[0] for _, where in placed(question, plan(question, ledger, eligible))}
        assert len(zones) == 1
        spread = ask(("worker", pod("w"), 5), prefer_topology_key="zone")
        assert isinstance(plan(spread, ledger, eligible), Plan)


def test_nothing_is_left_behind():
    ledger, eligible = cluster(node("a", cpu=4), node("b", cpu=4))
    before = {name: dict(room.free) for name, room in ledger.rooms.items()}
    plan(ask(("worker", pod("w", cpu="2"), 4)), ledger, eligible)
    plan(ask(("worker", pod("w", cpu="2"), 9)), ledger, eligible)
    assert {name: room.free for name, room in ledger.rooms.items()} == before


def test_recorded_places_are_checked_as_they_are():
    ledger, eligible = cluster(node("a", cpu=4), node("b", cpu=4))
    question = ask(("worker", pod("w", cpu="2"), 3))
    assert fits_placed(question, [(0, "a", 1), (0, "b", 2)], ledger, eligible)
    assert not fits_placed(question, [(0, "a", 3)], ledger, eligible)
    assert not fits_placed(question, [(0, "gone", 3)], ledger, eligible)


@pytest.mark.parametrize("fitting", [True, False])
def test_cost_on_a_thousand_nodes(fitting):
    """Twenty classes of 10 pods on 1,000 nodes with two hundred different rooms: goal 10 ms."""
    nodes = [node(f"n{i:04}", cpu=8 + i % 40, memory=f"{64 + i % 5}Gi", gpu=i % 2 * 8) for i in range(1000)]
    ledger, eligible = cluster(*nodes)
    demands = [(f"r{i}", pod(f"p{i}", cpu=f"{500 + 100 * i}m", gpu=i % 2), 10 if fitting else 9999) for i in range(20)]
    question = ask(*demands)
    plan(question, ledger, eligible)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        result = plan(question, ledger, eligible)
        times.append(time.perf_counter() - start)
    assert isinstance(result, Plan) is fitting
    print(f"20 classes, 1,000 nodes, {'fits' if fitting else 'does not fit'}: {min(times) * 1e3:.1f} ms")
    assert min(times) < 0.5


def test_the_largest_fit_of_members_that_want_to_be_together_is_that_of_the_largest_domain():
    """Zone a holds 2 of 3, zone b holds 1; starting on the tighter node must not make the message say 1."""
    term = {
        "topologyKey": "zone",
        "labelSelector": {"matchLabels": {"scheduling.x-k8s.io/pod-group": "train"}},
    }
    together = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    ledger, eligible = cluster(node("a", cpu=4, labels={"zone": "a"}), node("b", cpu=2, labels={"zone": "b"}))
    wanted = class_of(member("m", cpu="2", spec=together))
    result = plan(Question((Demand("worker", wanted, 3, 3),)), ledger, eligible)
    assert isinstance(result, Shortfall)
    assert (result.fits, result.wanted) == (2, 3)
