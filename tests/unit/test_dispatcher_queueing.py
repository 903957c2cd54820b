from typing import Any

import pytest

from dispatcher.queueing import Pending, QueuePolicy, QueueSettings, Waiting
from dispatcher.quota import Ledger
from dispatcher.quota_tree import MAX_JOBS, NO_TREE
from kube.objects.binding import ClusterReason
from tests.unit.dispatcher_objects import A, B, a_ledger, a_tree, a_waiting, an_ask, quota_node, shape, two_leaves

FREE = Ledger(NO_TREE)


def pending(*jobs: Waiting) -> Pending:
    made = Pending()
    for job in jobs:
        made.put(job)
    return made


def drain(queue: Pending, ledger: Ledger) -> list[str]:
    """Admit all that quota admits, in order."""
    admitted = []
    while (job := queue.next(ledger)) is not None:
        if job.ask:
            ledger.charge(job.binding_id, job.ask)
        queue.discard(job.binding_id)
        admitted.append(job.name)
    return admitted


# --- order in a queue


def test_priority_then_age_then_name() -> None:
    queue = pending(
        a_waiting("young", at="t2"),
        a_waiting("urgent", at="t9", priority=5),
        a_waiting("b-old", at="t1"),
        a_waiting("a-old", at="t1"),
    )

    assert drain(queue, FREE) == ["urgent", "a-old", "b-old", "young"]
    assert len(queue) == 0
    assert queue.next(FREE) is None


def test_non_preemptible_jobs_come_first_among_equals() -> None:
    ledger = a_ledger(two_leaves(a={"min": {"cpu": 4}}, cpu=4))
    queue = pending(
        a_waiting("soft", an_ask(A, cpu=1), at="t1"),
        a_waiting("hard", an_ask(A, cpu=1, preemptible=False), at="t2"),
    )

    assert drain(queue, ledger) == ["hard", "soft"]


def test_k18_a_priority_edit_re_orders() -> None:
    queue = pending(a_waiting("a"), a_waiting("b"))

    queue.put(a_waiting("b", priority=1))

    assert [job.name for job in queue.positions(())] == ["b", "a"]
    assert drain(queue, FREE) == ["b", "a"]


def test_k19_anything_can_be_deleted_at_any_time() -> None:
    ledger = a_ledger(two_leaves(a={"max": {MAX_JOBS: 0}}))
    queue = pending(a_waiting("a", an_ask(A)), a_waiting("b", an_ask(A)), a_waiting("c", an_ask(A, cpu=9)))
    queue.configure(A, QueueSettings(policy="Block"))
    assert queue.next(ledger) is None

    queue.discard("a")
    queue.discard("a")
    queue.discard("never-there")
    assert [job.name for job in queue.positions(A)] == ["b", "c"]
    queue.discard("b")
    queue.discard("c")

    assert len(queue) == 0
    assert queue.positions(A) == []
    queue.quota_freed(ledger, A)
    queue.wake_all()


def test_a_job_without_a_timestamp_is_in_order_too() -> None:
    assert drain(pending(a_waiting("dated", at="t1"), a_waiting("undated", at="")), FREE) == ["undated", "dated"]


def test_k16_a_job_that_moves_to_another_queue_blocks_the_old_one_no_more() -> None:
    ledger = a_ledger(two_leaves(a={"max": {"cpu": 0}}))
    queue = pending(a_waiting("moved", an_ask(A, cpu=1), priority=1), a_waiting("next", an_ask(A)))
    queue.configure(A, QueueSettings(policy="Block"))
    assert drain(queue, ledger) == []

    queue.put(a_waiting("moved", an_ask(B, cpu=1), priority=1))

    assert drain(queue, ledger) == ["moved", "next"]


def test_k17_an_edit_of_a_queue_keeps_its_jobs() -> None:
    queue = pending(a_waiting("a", an_ask(A)), a_waiting("b", an_ask(A)))

    policies: list[QueuePolicy] = ["Block", "Intelligent", "Priority"]
    for policy in policies:
        queue.configure(A, QueueSettings(policy=policy))
        assert [job.name for job in queue.positions(A)] == ["a", "b"]
    assert drain(queue, a_ledger(two_leaves())) == ["a", "b"]


def test_a_queue_outlives_its_jobs_by_nothing_but_its_settings() -> None:
    ledger = a_ledger(two_leaves())
    queue = pending(a_waiting("a", an_ask(A)), a_waiting("b", an_ask(A, cpu=1)))
    queue.configure(A, QueueSettings(policy="Block", priority=3))

    drain(queue, ledger)
    queue.put(a_waiting("c", an_ask(A), at="t9"))
    queue.put(a_waiting("d", an_ask(B), at="t0"))

    assert drain(queue, ledger) == ["c", "d"]


# --- order across queues


def test_the_queue_furthest_below_its_min_goes_first() -> None:
    """a uses 1 of 4, b 3 of 4; then a 2, then 3: equal, so age decides."""
    ledger = a_ledger(two_leaves(a={"min": {"cpu": "4m"}}, b={"min": {"cpu": "4m"}}, cpu=100))
    ledger.charge("x", an_ask(A, cpu=1))
    ledger.charge("y", an_ask(B, cpu=3))
    queue = pending(
        *(a_waiting(f"b{i}", an_ask(B, cpu=1), at=f"t{i}", priority=9) for i in range(2)),
        *(a_waiting(f"a{i}", an_ask(A, cpu=1), at=f"t{i}") for i in range(4)),
    )

    assert drain(queue, ledger) == ["a0", "a1", "b0", "a2", "b1", "a3"]


def test_queues_at_their_min_compete_by_queue_priority_then_job() -> None:
    ledger = a_ledger(two_leaves())
    queue = pending(
        a_waiting("a-high", an_ask(A), priority=9),
        a_waiting("b-old", an_ask(B), at="t0"),
        a_waiting("gang-mode", None, at="t2", priority=5),
    )
    assert drain(queue, ledger) == ["a-high", "gang-mode", "b-old"]

    queue = pending(a_waiting("a-high", an_ask(A), priority=9), a_waiting("b-old", an_ask(B), at="t0"))
    queue.configure(B, QueueSettings(priority=1))
    assert drain(queue, a_ledger(two_leaves())) == ["b-old", "a-high"]


# --- quota


def test_what_does_not_fit_is_passed_over_with_its_reason() -> None:
    ledger = a_ledger(two_leaves(a={"max": {"cpu": "10m"}}))
    queue = pending(
        a_waiting("big", an_ask(A, cpu=11), priority=9),
        a_waiting("one", an_ask(A, cpu=6)),
        a_waiting("two", an_ask(A, cpu=4)),
    )

    assert drain(queue, ledger) == ["one", "two"]
    assert queue.reason("big") == ((), "queue root/a: cpu 11m asked, 0 of 10m used")
    assert queue.reason("unknown") == ((), "")


def test_a_release_wakes_only_what_it_can_help() -> None:
    ledger = a_ledger(two_leaves(a={"max": {"cpu": "10m"}}, cpu=100))
    ledger.charge("runs", an_ask(A, cpu=6))
    ledger.charge("stays", an_ask(A, cpu=4))
    queue = pending(*(a_waiting(f"w{n}", an_ask(A, cpu=n)) for n in (2, 6, 7, 9)))
    assert drain(queue, ledger) == []

    ledger.release("runs")

    assert queue.quota_freed(ledger, A) == 2
    assert drain(queue, ledger) == ["w2"]
    ledger.release("w2")
    assert queue.quota_freed(ledger, A) == 1
    assert drain(queue, ledger) == ["w6"]


def test_a_release_helps_whom_room_is_held_for_behind_those_it_is_not() -> None:
    """Both wait for the root; what is freed is b's, and a, who asks for as much, is looked at first."""
    limit = {"nvidia.com/gpu": 4}
    ledger = a_ledger(quota_node("root", quota_node("a"), quota_node("b"), min=limit, max=limit))
    ledger.charge("running", an_ask(A, gpu=4))
    queue = Pending()
    queue.put(a_waiting("a1", an_ask(A, gpu=4)))
    queue.put(a_waiting("b1", an_ask(B, gpu=4)))
    assert queue.next(ledger) is None
    ledger.hold("b1", an_ask(B, gpu=4))
    ledger.release("running")
    queue.quota_freed(ledger, A)
    found = queue.next(ledger)
    assert found is not None
    assert found.name == "b1"


def test_a_release_in_one_leaf_helps_those_that_wait_for_the_root() -> None:
    ledger = a_ledger(two_leaves(cpu=1))
    ledger.charge("runs", an_ask(A, cpu=1000))
    queue = pending(a_waiting("w", an_ask(B, cpu=1000)))
    assert drain(queue, ledger) == []

    ledger.release("runs")

    assert queue.quota_freed(ledger, A) == 1
    assert drain(queue, ledger) == ["w"]


def test_a_job_that_waits_for_its_leaf_is_not_woken_by_the_root() -> None:
    ledger = a_ledger(two_leaves(a={"max": {"cpu": 0}}, cpu=1))
    queue = pending(a_waiting("w", an_ask(A, cpu=1)))
    assert drain(queue, ledger) == []

    assert queue.quota_freed(ledger, B) == 0


def test_what_is_woken_but_short_of_something_else_waits_for_that() -> None:
    ledger = a_ledger(two_leaves(a={"max": {"cpu": "1m"}}, cpu=1, memory=1))
    ledger.charge("cpu", an_ask(A, cpu=1))
    ledger.charge("memory", an_ask(B, memory=1))
    queue = pending(a_waiting("w", an_ask(A, cpu=1, memory=1)))
    assert drain(queue, ledger) == []

    ledger.release("cpu")
    assert queue.quota_freed(ledger, A) == 0
    assert queue.reason("w") == ((), "queue root: memory 1 asked, 1 of 1 used")
    ledger.release("memory")
    assert queue.quota_freed(ledger, B) == 1
    assert drain(queue, ledger) == ["w"]


def test_k8_a_tree_change_re_examines_every_job() -> None:
    ledger = a_ledger(two_leaves(a={"max": {"cpu": 0}}))
    queue = pending(a_waiting("w", an_ask(A, cpu=1)))
    assert drain(queue, ledger) == []

    ledger.retree(a_tree(two_leaves()))

    assert queue.wake_all() == 1
    assert drain(queue, ledger) == ["w"]


# --- policies


def blocked_head(policy: Any, head_priority: int = 9) -> tuple[Pending, Ledger]:
    ledger = a_ledger(two_leaves(a={"max": {"cpu": "10m"}}))
    queue = pending(
        a_waiting("head", an_ask(A, cpu=11), priority=head_priority),
        a_waiting("small", an_ask(A, cpu=1)),
        a_waiting("other", an_ask(B, cpu=1)),
    )
    queue.configure(A, QueueSettings(policy=policy))
    return queue, ledger


def test_f9_block_stops_its_own_queue_only() -> None:
    queue, ledger = blocked_head("Block")

    assert drain(queue, ledger) == ["other"]
    assert queue.reason("small") == ((), "queue root/a: behind ns/head, which blocks the queue")
    queue.discard("head")
    assert drain(queue, ledger) == ["small"]


@pytest.mark.parametrize(("priority", "admitted"), [(4, ["other"]), (3, ["other", "small"])])
def test_intelligent_blocks_from_its_threshold_on(priority: int, admitted: list[str]) -> None:
    queue, ledger = blocked_head("Intelligent", priority)

    assert sorted(drain(queue, ledger)) == admitted


def test_priority_passes_over() -> None:
    queue, ledger = blocked_head("Priority")

    assert sorted(drain(queue, ledger)) == ["other", "small"]


def test_block_with_a_head_that_no_member_holds() -> None:
    queue = pending(a_waiting("head", an_ask(A), priority=1), a_waiting("small", an_ask(A, cpu=1)))
    queue.configure(A, QueueSettings(policy="Block"))
    ledger = a_ledger(two_leaves())
    head = queue.next(ledger)
    assert head is not None
    queue.no_room(head.binding_id, {"c1": ""})

    assert queue.next(ledger) is None
    queue.wake("head")
    assert drain(queue, ledger) == ["head", "small"]


# --- room

NO = (ClusterReason(cluster="c1", message="largest fit 1 of 2 pods (nvidia.com/gpu)"),)


def test_a_class_is_tried_once_for_all_its_jobs() -> None:
    queue = pending(*(a_waiting(f"w{n}", gpu=8) for n in range(5)), a_waiting("small"))
    first = queue.next(FREE)
    assert first is not None
    assert first.name == "small"
    queue.no_room("small", {"c1": "nvidia.com/gpu"}, NO)

    second = queue.next(FREE)
    assert second is not None
    queue.no_room(second.binding_id, {"c1": "nvidia.com/gpu"}, NO)

    assert queue.next(FREE) is None
    assert queue.reason("w4") == (NO, "")


def waiting_for_room(*jobs: Waiting, clusters: tuple[str, ...] = ("c1",)) -> Pending:
    queue = pending(*jobs)
    for cluster in clusters:
        queue.room_reported(cluster, [shape(4, cpu=8, gpu=0)])
    while (job := queue.next(FREE)) is not None:
        queue.no_room(job.binding_id, dict.fromkeys(clusters, "nvidia.com/gpu"), NO)
    return queue


def test_f7_a_report_wakes_what_it_can_help() -> None:
    queue = waiting_for_room(a_waiting("two", gpu=8, pods=2), a_waiting("four", gpu=8, pods=4), a_waiting("tiny"))

    assert queue.room_reported("c1", [shape(4, cpu=8, gpu=0)]) == 0
    assert queue.room_reported("c1", [shape(2, cpu=8, gpu=4)]) == 1
    assert drain(queue, FREE) == ["tiny"]
    assert queue.room_reported("c1", [shape(1, cpu=8, gpu=8), shape(9, gpu=7)]) == 0
    assert queue.room_reported("c1", [shape(3, cpu=8, gpu=8)]) == 1
    assert drain(queue, FREE) == ["two"]


def test_a_report_without_more_room_wakes_nobody_again() -> None:
    """Refused for more than a report tells (spread, say): the same report is no news, a better one is."""
    queue = pending(a_waiting("odd", gpu=8))
    queue.room_reported("c1", [shape(4, gpu=8)])
    queue.no_room("odd", {"c1": ""}, NO)

    assert queue.room_reported("c1", [shape(4, gpu=8)]) == 0
    assert queue.room_reported("c1", [shape(3, gpu=8)]) == 0
    assert queue.room_reported("c1", [shape(4, gpu=8)]) == 1


def test_room_on_nodes_that_were_relabelled_is_news() -> None:
    queue = pending(a_waiting("picky", gpu=8))
    queue.room_reported("c1", [shape(4, gpu=8)])
    queue.no_room("picky", {"c1": ""}, NO)

    assert queue.room_reported("c1", [shape(4, {"pool": "train"}, gpu=8)]) == 1


def test_room_that_was_promised_to_another_job_and_is_not_any_more() -> None:
    queue = pending(a_waiting("w", gpu=8, pods=4), a_waiting("huge", gpu=8, pods=5))
    queue.room_reported("c1", [shape(4, gpu=8)])
    for name in ("w", "huge"):
        queue.no_room(name, {"c1": "nvidia.com/gpu"}, NO)

    assert queue.room_returned("c2") == 0
    assert queue.room_returned("c1") == 1
    assert drain(queue, FREE) == ["w"]


def test_a_member_that_refused_for_another_reason_wakes_when_it_changes() -> None:
    queue = pending(a_waiting("w"))
    queue.no_room("w", {}, (ClusterReason(cluster="c1", message="not ready 42s"),))

    assert queue.room_reported("c1", [shape(9, gpu=8)]) == 0
    assert queue.member_changed("c1") == 1
    assert drain(queue, FREE) == ["w"]


def test_a_member_that_joins_wakes_everybody_who_waits_for_room() -> None:
    queue = waiting_for_room(a_waiting("w"), a_waiting("v", gpu=8))

    assert queue.member_changed("new") == 2
    assert queue.member_changed("new") == 0


def test_a_member_that_goes_leaves_nothing_behind() -> None:
    queue = waiting_for_room(a_waiting("w"), clusters=("c1", "c2"))

    queue.member_gone("c1")

    assert queue.room_reported("c1", [shape(9, gpu=8)]) == 0
    assert queue.room_reported("c2", [shape(9, gpu=8)]) == 1


def test_other_demands_make_another_class() -> None:
    queue = waiting_for_room(a_waiting("w", constraint="pool=a"))

    queue.put(a_waiting("v", constraint="pool=b"))

    assert drain(queue, FREE) == ["v"]


def test_f11_those_that_have_waited_longest_for_room_come_first_for_a_claim() -> None:
    queue = waiting_for_room(
        a_waiting("old", gpu=8, at="t1"), a_waiting("older", gpu=4, at="t0"), a_waiting("urgent", gpu=2, priority=1)
    )
    queue.put(a_waiting("untried", at="t00", priority=9))

    def oldest_first() -> list[str]:
        return [found.name for found in queue.without_room()]

    assert oldest_first() == ["urgent", "older", "old"]
    queue.discard("urgent")
    assert oldest_first() == ["older", "old"]
    queue.wake("older")
    assert oldest_first() == ["old"]
    queue.discard("old")
    assert oldest_first() == []
