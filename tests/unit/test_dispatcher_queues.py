import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.documents import deep_copy
from dispatcher.queue_names import queue_name
from dispatcher.queue_units import (
    Checks,
    desired_queue_unit,
    judge_checks,
    needed_checks,
    queue_unit_status,
    unit_state,
)
from dispatcher.queueing import Pending, QueueSettings, Waiting, hand_made_key
from dispatcher.queues import TREE as IN_FORCE
from dispatcher.queues import (
    Chosen,
    choose_queue,
    desired_queues,
    last_good_tree,
    queue_changes,
    queue_items,
    queue_settings,
    settings_by_path,
)
from dispatcher.quota_tree import NO_TREE, load_tree
from kube.objects.binding import (
    Attempt,
    BindingSpec,
    BindingStatus,
    JobRef,
    ResourceBinding,
    Result,
    binding_name,
)
from kube.objects.meta import Condition, ObjectMeta
from tests.unit.dispatcher_objects import A, B, a_ledger, a_tree, a_waiting, an_ask, example, quota_node, read

NOW = "2026-03-01T12:00:00Z"
TREE = a_tree(example("elasticquotatree.yaml")["spec"]["root"])


def existing(*queues: dict[str, Any]) -> list[dict[str, Any]]:
    made = []
    for index, queue in enumerate(queues):
        made.append(deep_copy(queue))
        made[-1]["metadata"] |= {"uid": f"u{index}", "resourceVersion": str(index)}
    return made


# --- names


def test_queues_are_named_as_on_the_users_page() -> None:
    names = sorted(queue["metadata"]["name"] for queue in desired_queues(TREE))

    child, root = names
    assert re.fullmatch(r"root-child-2-[bcdfghjklmnpqrstvwxz2456789]{5}", child)
    assert re.fullmatch(r"root-[bcdfghjklmnpqrstvwxz2456789]{5}", root)


def test_k15_names_are_the_same_in_every_process() -> None:
    assert queue_name(["root"]) == "root-gtkwq"
    assert queue_name(["root", "child-2"]) == queue_name(("root", "child-2"))


def test_k15_long_names_are_cut_in_front_without_a_leading_dash() -> None:
    path = ["root", "a" * 40 + "-" + "b" * 56]

    name = queue_name(path)

    assert name.startswith("b" * 56 + "-")
    assert len(name) == 62


@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=4))
def test_every_path_makes_a_dns_label(path: list[str]) -> None:
    name = queue_name(path)

    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
    assert len(name) <= 63


def test_paths_that_look_alike_are_told_apart() -> None:
    names = {queue_name(path) for path in (["r", "a"], ["r", "A"], ["r-a"], ["r_a"], ["r", "a "])}

    assert len(names) == 5
    assert {name[:4] for name in names} == {"r-a-"}


# --- one Queue per node


def test_queues_carry_the_quotas_full_names() -> None:
    root, child = desired_queues(TREE)

    assert load_tree(root["metadata"]["annotations"].pop(IN_FORCE)).nodes == TREE.nodes
    assert root["metadata"]["annotations"] == {"kube-queue/quota-fullname": "root"}
    assert child["metadata"] == {
        "name": queue_name(["root", "child-2"]),
        "namespace": "kube-queue",
        "labels": {"create-by-kubequeue": "true"},
        "annotations": {
            "kube-queue/quota-fullname": "root/child-2",
            "kube-queue/parent-quota-fullname": "root",
        },
    }
    assert child["spec"] == {"queuePolicy": "Priority"}


def test_missing_ones_are_made_and_the_rest_left_as_it_is() -> None:
    everything = queue_changes(TREE, [])
    assert everything.create == tuple(desired_queues(TREE))

    there = existing(*desired_queues(TREE))
    there[0]["spec"] = {"queuePolicy": "Block"}
    there[0]["metadata"]["annotations"]["team"] = "x"
    nothing = queue_changes(TREE, there)
    assert (nothing.create, nothing.update, nothing.delete) == ((), (), ())


def test_damaged_annotations_are_repaired_and_users_own_kept() -> None:
    there = existing(*desired_queues(TREE))
    there[1]["metadata"]["annotations"] = {"kube-queue/quota-fullname": "wrong", "team": "x"}

    [repaired] = queue_changes(TREE, there).update

    assert repaired["metadata"]["resourceVersion"] == "1"
    assert repaired["metadata"]["annotations"] == {
        "kube-queue/quota-fullname": "root/child-2",
        "kube-queue/parent-quota-fullname": "root",
        "team": "x",
    }


def test_surplus_queues_go_and_hand_made_ones_stay() -> None:
    there = existing(*desired_queues(TREE))
    hand_made = {"metadata": {"name": "mine", "namespace": "kube-queue"}}

    changes = queue_changes(NO_TREE, [*there, hand_made])

    assert sorted(changes.delete) == sorted((queue["metadata"]["name"], queue["metadata"]["uid"]) for queue in there)


def test_a_hand_made_queue_in_the_way_is_left_alone_and_told() -> None:
    there = existing(*desired_queues(TREE))
    del there[1]["metadata"]["labels"]

    changes = queue_changes(TREE, there)

    assert (changes.create, changes.update, changes.delete) == ((), (), ())
    [warning] = changes.warnings
    assert "was made by hand" in warning


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, QueueSettings()),
        ({"queuePolicy": "Round", "priority": 3}, QueueSettings(priority=3)),
        ({"queuePolicy": "Block"}, QueueSettings(policy="Block")),
        ({"queuePolicy": "Intelligent"}, QueueSettings(policy="Intelligent")),
        ({"queuePolicy": None, "priority": "x"}, QueueSettings()),
    ],
)
def test_users_settings_are_read_from_the_queue(spec: dict[str, Any], expected: QueueSettings) -> None:
    assert queue_settings({"spec": spec}) == expected
    root, child = desired_queues(TREE)
    assert settings_by_path(TREE, [root, {**child, "spec": spec}]) == {
        ("root",): QueueSettings(),
        ("root", "child-2"): expected,
    }


def test_items_are_numbered_from_one() -> None:
    def job(name: str, priority: int) -> Waiting:
        return Waiting(
            binding_id=name, namespace="default", name=name, ask=None, components=(), min_member=1,
            priority=priority, queued_at="",
        )  # fmt: skip

    waiting = [job("a", 5), job("b", 0), job("c", 0)]

    assert queue_items(waiting, limit=2) == {
        "active": [
            {"name": "a-pytorchjob-rb-qu", "namespace": "default", "priority": 5, "position": 1},
            {"name": "b-pytorchjob-rb-qu", "namespace": "default", "priority": 0, "position": 2},
        ]
    }
    assert queue_items([]) == {"active": []}


# --- QueueUnits


def a_binding(status: BindingStatus | None = None, **spec: Any) -> ResourceBinding:
    job = read(example("pytorchjob.yaml"))
    return ResourceBinding(
        metadata=ObjectMeta(name=binding_name(job.name), namespace=job.namespace),
        spec=BindingSpec(
            hub_id="hub-1",
            job_id="id-1",
            job=JobRef(api_version="kubeflow.org/v1", kind="PyTorchJob", name=job.name, uid="uid-1"),
            queued=True,
            quota="root/child-2",
            components=job.components(),
            min_member=3,
            priority=7,
            **spec,
        ),
        status=status or BindingStatus(),
    )


def attempt(state: Any, **kwargs: Any) -> Attempt:
    return Attempt(cluster="c1", epoch=1, state=state, **kwargs)


def conditions(**statuses: str) -> BindingStatus:
    made = [Condition(type=t, status=s, reason="R", message=f"{t} {s}") for t, s in statuses.items()]
    return BindingStatus(conditions=made)


@pytest.mark.parametrize(
    ("spec", "status", "phase", "message"),
    [
        ({}, None, "Enqueued", "Enqueued"),
        ({}, conditions(Scheduled="False"), "Enqueued", "Scheduled False"),
        ({"attempt": attempt("Reserving")}, None, "Reserved",
         "Reserved resources success, waiting admission checks to be ready"),
        ({"attempt": attempt("Scheduled")}, None, "Dequeued", "Dequeued because schedule successfully"),
        ({"attempt": attempt("Landed")}, conditions(Running="False"), "Dequeued",
         "Dequeued because schedule successfully"),
        ({"attempt": attempt("Landed")}, conditions(Running="True"), "Running", ""),
        ({"attempt": attempt("Evicting", then="Queue", message="not landed in 600s")}, None, "TimeoutBackoff",
         "not landed in 600s"),
        ({"attempt": attempt("Evicting", then="Delete", message="deleted")}, None, "Dequeued", "deleted"),
        ({"attempt": attempt("Finished"), "result": Result(state="Succeeded", cluster="c1", epoch=1, message="done")},
         None, "Succeed", "done"),
        ({"result": Result(state="Failed", cluster="c1", epoch=1, message="exit 1")}, None, "Failed", "exit 1"),
    ],
)  # fmt: skip
def test_phases_follow_the_binding(
    spec: dict[str, Any], status: BindingStatus | None, phase: str, message: str
) -> None:
    state = unit_state(a_binding(status, **spec))

    assert (state.phase, state.message) == (phase, message)


def test_a_unit_tells_the_job_its_queue_and_what_it_asks_for() -> None:
    unit = desired_queue_unit(a_binding(), priority_class="high")

    assert unit["metadata"]["name"] == "pytorch-test-pytorchjob-rb-qu"
    assert unit["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert unit["spec"] == {
        "consumerRef": {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "namespace": "default",
            "name": "pytorch-test",
            "uid": "uid-1",
        },
        "priority": 7,
        "priorityClassName": "high",
        "queue": queue_name(["root", "child-2"]),
        "request": {"cpu": "4010m", "memory": "4Gi"},
        "resource": {"cpu": "4010m", "memory": "4Gi"},
        "podSet": [
            {"name": "master", "count": 1, "minCount": 1},
            {"name": "worker", "count": 2, "minCount": 2},
        ],
    }


def test_an_unchanged_unit_is_not_written_again() -> None:
    first = queue_unit_status(a_binding(), None, NOW)

    assert first == {
        "phase": "Enqueued", "message": "Enqueued", "attempts": 0, "admissions": [], "lastUpdateTime": NOW,
    }  # fmt: skip
    assert queue_unit_status(a_binding(), first, "later") == first


def test_admission_is_dated_and_listed_and_checks_of_others_are_kept() -> None:
    checks = [{"name": "budget", "state": "Ready"}]
    waiting = {**queue_unit_status(a_binding(), None, NOW), "admissionChecks": checks}

    reserved = queue_unit_status(a_binding(attempt=attempt("Reserving"), last_epoch=1), waiting, "t1")
    dequeued = queue_unit_status(a_binding(attempt=attempt("Scheduled"), last_epoch=1), reserved, "t2")

    assert (reserved["lastAllocateTime"], reserved["admissions"], reserved["attempts"]) == ("t1", [], 1)
    assert (dequeued["lastAllocateTime"], dequeued["lastUpdateTime"]) == ("t1", "t2")
    assert dequeued["admissions"] == [
        {"name": "master", "replicas": 1, "resources": {"cpu": "10m"}},
        {"name": "worker", "replicas": 2, "resources": {"cpu": "4", "memory": "4Gi"}},
    ]
    assert dequeued["admissionChecks"] == checks


def test_a_tree_of_many_nodes_makes_as_many_queues() -> None:
    tree = a_tree(quota_node("root", *(quota_node(f"team-{n}") for n in range(40))))

    assert len({queue["metadata"]["name"] for queue in desired_queues(tree)}) == 41


# --- the last good tree


def test_k4_the_last_good_tree_is_read_back_from_the_roots_queue() -> None:
    found = last_good_tree(desired_queues(TREE))
    assert found is not None
    assert (found.nodes, found.leaf_of, found.by_name) == (TREE.nodes, TREE.leaf_of, TREE.by_name)


def test_a_note_that_was_edited_or_is_not_ours_is_no_tree() -> None:
    queues = desired_queues(TREE)
    foreign = deep_copy(queues[0])
    del foreign["metadata"]["labels"]
    queues[0]["metadata"]["annotations"][IN_FORCE] = '[{"name": 3}]'
    assert last_good_tree([queues[0], foreign]) is None
    assert last_good_tree([]) is None


# --- hand-made queues


@pytest.mark.parametrize(
    ("available", "taken"),
    [("child-2", True), ("root/child-2", True), ("*", True), ("other, child-2", True), ("other", False), ("", False)],
)
def test_a_hand_made_queue_takes_the_jobs_of_the_quotas_it_names(available: str, taken: bool) -> None:
    queues = {"research": {"metadata": {"annotations": {"kube-queue/available-quota": available}}}}
    chosen = choose_queue("research", ("root", "child-2"), queues)
    assert chosen.name == ("research" if taken else "")
    assert bool(chosen.reason) != taken
    if not taken:
        assert "does not take jobs of quota root/child-2" in chosen.reason


def test_without_the_annotation_or_with_its_quotas_own_queue_a_job_waits_there() -> None:
    assert choose_queue("", ("root",), {}) == Chosen("")
    assert choose_queue(queue_name(("root", "child-2")), ("root", "child-2"), {}) == Chosen("")
    assert "there is no queue kube-queue/gone" in choose_queue("gone", ("root",), {}).reason


def test_settings_of_hand_made_queues_count_too() -> None:
    queue = {"metadata": {"name": "research"}, "spec": {"queuePolicy": "Block", "priority": 3}}
    settings = settings_by_path(a_tree(quota_node("root")), [queue])
    assert settings == {
        ("root",): QueueSettings(),
        hand_made_key("research"): QueueSettings(policy="Block", priority=3),
    }


def test_f9_a_hand_made_queue_that_blocks_holds_only_its_own_jobs() -> None:
    """Two quotas' jobs wait in it; its first asks for more than its quota has. A job of that quota that waits in the
    quota's own queue goes on."""
    limit = {"nvidia.com/gpu": 4}
    leaves = [quota_node("a", max={"nvidia.com/gpu": 1}), quota_node("b")]
    ledger = a_ledger(quota_node("root", *leaves, min=limit, max=limit))
    queue = Pending()
    queue.configure(hand_made_key("research"), QueueSettings(policy="Block"))
    queue.put(a_waiting("big", an_ask(A, gpu=2), at="t0", hand_made="research"))
    queue.put(a_waiting("behind", an_ask(B, gpu=1), at="t1", hand_made="research"))
    queue.put(a_waiting("own", an_ask(A, gpu=1), at="t2"))
    admitted = []
    while (found := queue.next(ledger)) is not None:
        admitted.append(found.name)
        queue.discard(found.name)
    assert admitted == ["own"]
    assert queue.reason("behind")[1] == "queue research: behind ns/big, which blocks the queue"
    assert [w.name for w in queue.positions(hand_made_key("research"))] == ["big", "behind"]


# --- admission checks


def test_a_queue_asks_for_checks_of_the_jobs_that_their_selectors_take() -> None:
    checks = [
        {"name": "budget"},
        {"name": "gpu-license", "labelSelector": {"matchLabels": {"team": "a"}}},
        {"name": "unreadable", "labelSelector": {"matchExpressions": [{"key": "x", "operator": "Near"}]}},
    ]
    queue = {"spec": {"admissionChecks": checks}}
    assert needed_checks(queue, {"team": "a"}) == ["budget", "gpu-license", "unreadable"]
    assert needed_checks(queue, {"team": "b"}) == ["budget", "unreadable"]
    assert needed_checks(None, {}) == []


def test_checks_are_pending_until_somebody_says_ready() -> None:
    def states(**checks: str) -> dict[str, Any]:
        return {"admissionChecks": [{"name": name, "state": state} for name, state in checks.items()]}

    assert judge_checks([], None) == Checks()
    assert judge_checks(["budget"], None) == Checks(pending="budget")
    assert judge_checks(["budget"], states(budget="Pending")) == Checks(pending="budget")
    assert judge_checks(["budget"], states(budget="Ready")) == Checks()
    assert judge_checks([], states(other="Pending")) == Checks(pending="other")
    assert judge_checks(["budget"], states(budget="Rejected")) == Checks(failed="budget: Rejected")
    said = {"admissionChecks": [{"name": "budget", "state": "Retry", "message": "spent"}]}
    assert judge_checks(["budget"], said) == Checks(failed="budget: Retry (spent)")


def test_needed_checks_are_listed_when_room_is_reserved_and_asked_again_after_a_failure() -> None:
    reserved = a_binding(attempt=attempt("Reserving"))
    status = queue_unit_status(reserved, None, NOW, ["budget"])
    assert status["admissionChecks"] == [{"name": "budget", "state": "Pending"}]
    answered = {**status, "admissionChecks": [{"name": "budget", "state": "Rejected", "message": "spent"}]}
    assert queue_unit_status(reserved, answered, NOW, ["budget"]) == answered
    again = queue_unit_status(a_binding(), answered, NOW, ["budget"])
    assert again["admissionChecks"] == [{"name": "budget", "state": "Pending"}]
