from typing import Any

import pytest

from dispatcher.jobs import Job
from dispatcher.placement import Choice, Member, Promise, choose
from dispatcher.policies import Policy
from kube.objects.capacity import NodeShape
from kube.objects.nodes import Taint
from tests import samples
from tests.unit.dispatcher_objects import a_job, a_member, a_policy, read, role, shape


def gpu_job(pods: int, gpus: int = 8, **kwargs: Any) -> Job:
    return a_job(master=None, worker=role(pods, cpu=1, gpu=gpus), **kwargs)


def gpu_nodes(nodes: int, gpus: int = 8) -> NodeShape:
    return shape(nodes, cpu=64, gpu=gpus)


def chosen(choice: Choice) -> list[str]:
    return [candidate.cluster for candidate in choice.ranked]


def why(choice: Choice) -> dict[str, str]:
    return {reason.cluster: reason.message for reason in choice.refused}


def ask(job: Job, *members: Member, policy: Policy | None = None, **kwargs: Any) -> Choice:
    return choose(job, policy or a_policy(), members, **{"judge_all": True, **kwargs})


# --- F2: by node, not by sum


def test_f2_enough_as_a_sum_is_not_enough_per_node() -> None:
    """32 free GPUs either way; four pods want eight each."""
    scattered = a_member("scattered", gpu_nodes(8, gpus=4))
    whole = a_member("whole", gpu_nodes(4, gpus=8))

    choice = ask(gpu_job(4), scattered, whole)

    assert chosen(choice) == ["whole"]
    assert why(choice) == {"scattered": "largest fit 0 of 4 pods (nvidia.com/gpu)"}
    assert choice.short == {"scattered": "nvidia.com/gpu"}


def test_f26_each_refused_member_has_its_reason_and_all_are_sorted() -> None:
    members = [
        a_member("c3", gpu_nodes(9), cordoned=True),
        a_member("c1", gpu_nodes(7)),
        a_member("c2", gpu_nodes(9), ready=False, not_ready_seconds=42.9),
    ]

    choice = ask(gpu_job(9), *members)

    assert chosen(choice) == []
    assert [(r.cluster, r.message) for r in choice.refused] == [
        ("c1", "largest fit 7 of 9 pods (nvidia.com/gpu)"),
        ("c2", "not ready 42s"),
        ("c3", "cordoned"),
    ]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"ready": False, "not_ready_seconds": 5, "not_ready_reason": "certificate expired"},
         "not ready 5s (certificate expired)"),
        ({"fenced": True}, "fenced"),
        ({"replaced": True}, "another cluster answers under its address: accept it or correct the kubeconfig"),
        ({"report_age": None}, "no capacity report yet"),
        ({"report_age": 31.5}, "capacity report 31s old"),
        ({"dialect": ""}, "its PyTorchJob dialect is not known: install the training operator there"),
        ({"namespaces": frozenset({"other"})}, "has no namespace 'default', and createNamespaces is off"),
        ({"taints": (Taint("reserved", "team-b", "NoSchedule"),)},
         "taint reserved=team-b:NoSchedule is not in the policy's clusterTolerations"),
        ({"taints": (Taint("broken", "", "NoExecute"),)},
         "taint broken:NoExecute is not in the policy's clusterTolerations"),
    ],
)  # fmt: skip
def test_what_bars_a_member_whatever_room_it_has(state: dict[str, Any], reason: str) -> None:
    choice = ask(a_job(), a_member("c1", shape(10, cpu=64), **state), a_member("c2", shape(10, cpu=64)))

    assert chosen(choice) == ["c2"]
    assert why(choice) == {"c1": reason}
    assert choice.short == {}


def test_a_full_member_says_so() -> None:
    assert why(ask(a_job(), a_member("c1"))) == {"c1": "largest fit 0 of 3 pods (no node has free room)"}


def test_a_report_that_left_shapes_out_is_told() -> None:
    choice = ask(gpu_job(4), a_member("c1", gpu_nodes(3), shapes_left_out=9))

    assert why(choice) == {"c1": "largest fit 3 of 4 pods (nvidia.com/gpu) in the largest node shapes"}


# --- the policy's wishes


def test_affinity_names_excludes_and_labels() -> None:
    members = [a_member(name, shape(10, cpu=64), labels={"zone": name[-1]}) for name in ("c1", "c2", "c3")]

    def only(**affinity: Any) -> list[str]:
        policy = a_policy(placement={"clusterAffinity": affinity})
        return chosen(ask(a_job(), *members, policy=policy))

    assert only(clusterNames=["c3", "c2"], exclude=["c2"]) == ["c3"]
    assert only(labelSelector={"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["1"]}]}) == [
        "c2",
        "c3",
    ]
    assert only(exclude=["c1"]) == ["c2", "c3"]
    assert only() == ["c1", "c2", "c3"]


def test_affinity_groups_are_asked_in_their_order() -> None:
    groups = [{"affinityName": "first", "clusterNames": ["z"]}, {"affinityName": "rest", "clusterNames": ["a", "b"]}]
    policy = a_policy(placement={"clusterAffinities": groups})
    members = [a_member(name, shape(10, cpu=64)) for name in ("a", "b", "c", "z")]

    choice = ask(a_job(), *members, policy=policy)

    assert chosen(choice) == ["z", "a", "b"]
    assert why(choice) == {"c": "not in the policy's clusterAffinity"}


def test_tolerated_taints_do_not_bar() -> None:
    policy = a_policy(placement={"clusterTolerations": [{"key": "reserved", "operator": "Exists"}]})
    tainted = a_member("c1", shape(10, cpu=64), taints=(Taint("reserved", "x", "NoExecute"),))

    assert chosen(ask(a_job(), tainted, policy=policy)) == ["c1"]


def test_advised_against_comes_last() -> None:
    soft = a_member("a", shape(10, cpu=64), taints=(Taint("old", "", "PreferNoSchedule"),))

    assert chosen(ask(a_job(), soft, a_member("b", shape(10, cpu=64)))) == ["b", "a"]


def test_a_cluster_whose_dispatching_is_suspended_is_left_out() -> None:
    policy = a_policy(suspension={"dispatchingOnClusters": {"clusterNames": ["c1"]}})

    assert why(ask(a_job(), a_member("c1", shape(9, cpu=8)), policy=policy)) == {
        "c1": "the policy suspends dispatching to it"
    }


def test_members_that_refused_lately_are_left_out_with_what_they_said() -> None:
    members = [a_member(name, shape(10, cpu=64)) for name in ("c1", "c2", "c3")]

    choice = ask(a_job(), *members, excluded={"c1": "largest fit 2 of 3 pods (cpu)"})
    assert (chosen(choice), why(choice)) == (["c2", "c3"], {"c1": "largest fit 2 of 3 pods (cpu)"})
    assert why(ask(a_job(), *members, excluded=["c2"])) == {"c2": "refused this job lately"}


# --- what a member can run at all


def test_the_legacy_operator_is_no_candidate_for_what_it_would_prune() -> None:
    job = read(samples.job("sidecar-and-overhead.yaml"))
    members = [a_member("old", gpu_nodes(8), dialect="arena"), a_member("new", gpu_nodes(8))]

    choice = ask(job, *members, policy=a_policy(namespace="team-a"))

    assert chosen(choice) == ["new"]
    assert "drops restartPolicy of init container 'log-shipper'" in why(choice)["old"]


def test_priority_classes_have_to_be_there_with_the_hubs_value() -> None:
    worker = role(1, cpu=1)
    worker["template"]["spec"]["priorityClassName"] = "high"
    job = a_job(master=None, worker=worker)
    room = shape(4, cpu=8)
    members = [
        a_member("none", room, priority_classes={}),
        a_member("other", room, priority_classes={"high": 5}),
        a_member("same", room, priority_classes={"high": 10}),
        a_member("untold", room),
    ]

    choice = ask(job, *members, priority_classes={"high": 10})

    assert chosen(choice) == ["same", "untold"]
    assert why(choice) == {
        "none": "has no PriorityClass 'high'",
        "other": "its PriorityClass 'high' has value 5, the hub's 10",
    }


def test_classes_that_every_cluster_has_are_not_looked_for() -> None:
    worker = role(1, cpu=1)
    worker["template"]["spec"]["priorityClassName"] = "system-node-critical"

    assert chosen(ask(a_job(master=None, worker=worker), a_member("c", shape(1, cpu=8), priority_classes={}))) == ["c"]


def test_a_damaged_report_harms_only_its_member() -> None:
    damaged = shape(3, cpu="lots")

    choice = ask(a_job(), a_member("bad", damaged), a_member("good", shape(3, cpu=8)))

    assert chosen(choice) == ["good"]
    assert why(choice)["bad"].startswith("its capacity report is damaged (cpu: quantity 'lots' is not a number")


# --- order


def test_the_tightest_fit_is_asked_first() -> None:
    """Four CPUs asked of 8, 64 and 640 free ones."""
    rooms = {"large": shape(10, cpu=64), "small": shape(1, cpu=8), "mid": shape(1, cpu=64)}
    members = [a_member(name, room) for name, room in rooms.items()]

    assert chosen(ask(a_job(master=None, worker=role(2, cpu=2)), *members)) == ["small", "mid", "large"]


def test_a_job_without_devices_leaves_device_nodes_alone() -> None:
    gpus = a_member("gpus", gpu_nodes(1))
    plain = a_member("plain", shape(100, cpu=64))

    assert chosen(ask(a_job(), gpus, plain)) == ["plain", "gpus"]


def test_a_label_that_reports_do_not_tell_is_tried_last() -> None:
    worker = role(1, cpu=1)
    worker["template"]["spec"]["nodeSelector"] = {"feature.node.kubernetes.io/x": "true"}
    job = a_job(master=None, worker=worker)
    untold = a_member("a", shape(1, cpu=2))
    told = a_member("b", shape(9, {"feature.node.kubernetes.io/x": "true"}, cpu=64))
    wrong = a_member("c", shape(9, {"feature.node.kubernetes.io/x": "false"}, cpu=64))

    choice = ask(job, untold, told, wrong)

    assert chosen(choice) == ["b", "a"]
    assert why(choice) == {"c": "largest fit 0 of 1 pods (node(s) didn't match Pod's node affinity/selector)"}


def test_deciding_judges_no_further_than_the_first_that_holds_all() -> None:
    members = [a_member("tight", shape(1, cpu=4)), a_member("mid", shape(1, cpu=8)), a_member("wide", shape(9, cpu=64))]
    job = a_job(master=None, worker=role(2, cpu=3))

    decided = ask(job, *members, judge_all=False)

    assert chosen(decided) == ["mid"]
    assert why(decided) == {"tight": "largest fit 1 of 2 pods (cpu)"}
    assert chosen(ask(job, *members)) == ["mid", "wide"]


# --- F3: room just promised


def promise(job: Job, cluster: str, job_id: str = "other", epoch: int = 1) -> Promise:
    return Promise(cluster=cluster, job_id=job_id, epoch=epoch, components=tuple(job.components()))


def test_f3_room_promised_to_another_job_is_taken_until_a_report_includes_it() -> None:
    job = gpu_job(4)
    c1 = a_member("c1", gpu_nodes(4))
    included = a_member("c1", gpu_nodes(4), includes=frozenset({("other", 1)}))

    assert chosen(ask(job, c1)) == ["c1"]
    assert why(ask(job, c1, promises=[promise(job, "c1")])) == {"c1": "largest fit 0 of 4 pods (nvidia.com/gpu)"}
    assert chosen(ask(job, included, promises=[promise(job, "c1")])) == ["c1"]
    assert chosen(ask(job, included, promises=[promise(job, "c1", epoch=2)])) == []
    assert chosen(ask(job, c1, promises=[promise(job, "c2")])) == ["c1"]


def test_a_jobs_own_promise_is_not_in_its_way() -> None:
    job = gpu_job(4)

    choice = ask(job, a_member("c1", gpu_nodes(4)), promises=[promise(job, "c1", "me")], job_id="me")

    assert chosen(choice) == ["c1"]


def test_a_promise_to_a_job_elsewhere_on_the_nodes_leaves_the_rest() -> None:
    """The other job may only use pool b; where its templates are known that is honoured."""
    worker = role(4, cpu=8)
    worker["template"]["spec"]["nodeSelector"] = {"pool": "b"}
    other = a_job("other", master=None, worker=worker)
    mine = role(4, cpu=8)
    mine["template"]["spec"]["nodeSelector"] = {"pool": "a"}
    job = a_job(master=None, worker=mine)
    member = a_member("c1", shape(4, {"pool": "a"}, cpu=8), shape(4, {"pool": "b"}, cpu=8))

    known = Promise(cluster="c1", job_id="o", epoch=1, components=tuple(other.components()), job=other)

    assert chosen(ask(job, member, promises=[known])) == ["c1"]


# --- gangs with a minimum


def test_where_only_the_minimum_fits_is_asked_after_where_all_fits() -> None:
    job = gpu_job(6, runPolicy={"schedulingPolicy": {"minAvailable": 4}})

    choice = ask(job, a_member("a", gpu_nodes(4)), a_member("b", gpu_nodes(60)), a_member("c", gpu_nodes(3)))

    assert [(candidate.cluster, candidate.pods) for candidate in choice.ranked] == [("b", 6), ("a", 4)]
    assert why(choice) == {"c": "largest fit 3 of 6 pods (nvidia.com/gpu)"}


def test_the_minimum_needs_the_master() -> None:
    """Six workers fit, but the Master's GPU is nowhere."""
    policy = {"schedulingPolicy": {"minAvailable": 3}}
    job = a_job(master=role(1, cpu=1, gpu=1), worker=role(6, cpu=2), runPolicy=policy)

    assert why(ask(job, a_member("c", shape(9, cpu=8)))) == {"c": "largest fit 6 of 7 pods (nvidia.com/gpu)"}
