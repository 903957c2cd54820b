"""What users of other gang schedulers reported as broken, by its number (A14, A15): nothing outlives a gang, and its
status tells the truth."""

import contextlib
import threading
import time
from pathlib import Path

import pytest

from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.rest import Rest
from hack.fleet.spec import NodeShape
from tests.fleet.conftest import SetNodes
from tests.fleet.gang_stories import (
    POD_GROUPS,
    Series,
    delete_pod,
    group_status,
    metrics,
    patch,
    pod_condition,
    post_gang,
    wait_event,
    wait_refused,
)
from tests.fleet.stories import (
    GENEROUS,
    Json,
    Stopwatch,
    bindings_posted,
    bound,
    delete_pods,
    gang_pod,
    pod_group,
    posting,
    running,
    wait_landed,
)

SIZE = 2
BOUNDED_BY_TIME = {"tombstones", "timers"}
"""Deleted UIDs are remembered for two minutes (tests/unit/test_extender_memory.py passes that time)."""
MEBIBYTE = 1 << 20


# --- A14: nothing per gang outlives the gang ---------------------------------------------------------------------


def entries(series: Series) -> dict[str, float]:
    """Entries of each map of the core."""
    return {
        dict(labels)["map"]: value
        for (name, labels), value in series.items()
        if name == "muster_core_entries" and dict(labels)["map"] not in BOUNDED_BY_TIME
    }


def resident(fleet: Fleet, process: str) -> int:
    """Bytes."""
    status = Path(f"/proc/{fleet.processes[process].pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize(("waves", "gangs"), [(3, 100), pytest.param(10, 300, id="3000-gangs", marks=pytest.mark.long)])
def test_a14_nothing_per_gang_outlives_the_gang(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes, waves: int, gangs: int
) -> None:
    """Nothing per gang outlives the gang: after many gangs come and go (here 300 of two pods, through the real
    scheduler) series count, map sizes and RSS are back to base."""
    member_nodes(member1=[NodeShape(count=2, cpu="64", gpus=0, pods=1000)])
    # What earlier tests left is still going: the base is taken when the member has come to rest.
    wait_for("the member at rest", lambda: not member1.get("/api/v1/pods")["items"] and rests(member1), GENEROUS)
    series_before = metrics(member1)
    before = entries(series_before)
    sizes = []
    with contextlib.closing(Rest(member1.kubeconfig, timeout=GENEROUS)) as rest:
        for wave in range(waves):
            with posting(member1) as post, Stopwatch(f"{gangs} gangs of {SIZE}, posted one by one, landed"):
                for number in range(gangs):
                    gang = f"w{wave}-{number}"
                    post(pod_group(namespace, gang, SIZE))
                    for index in range(SIZE):
                        post(gang_pod(namespace, gang, index, cpu="100m"))
                wait_for(
                    "all bound", lambda: len(bound(member1, namespace)) == gangs * SIZE, 2 * GENEROUS, interval=0.3
                )
            now = {"gracePeriodSeconds": 0}
            rest.request("DELETE", f"/api/v1/namespaces/{namespace}/pods", now)
            rest.request("DELETE", POD_GROUPS.format(namespace), now)
            try:
                wait_for("all forgotten", lambda: entries(metrics(member1)) == before, GENEROUS, interval=0.3)
            except AssertionError as error:
                raise AssertionError(f"{error}: before {before}, now {entries(metrics(member1))}") from None
            sizes.append(resident(fleet, "member1/extender"))
    print(f"\n  RSS after each wave, MiB: {', '.join(f'{size / MEBIBYTE:.1f}' for size in sizes)}")
    assert set(metrics(member1)) - set(series_before) <= series_of_reasons(metrics(member1)), "no series per gang"
    assert sizes[-1] - sizes[0] < 8 * MEBIBYTE


def rests(member: Cluster) -> bool:
    """No PodGroup is left, and two looks a second apart see the same."""
    first = entries(metrics(member))
    if first["pod_groups"]:
        return False
    pause = time.monotonic() + 1.0
    wait_for("a second", lambda: time.monotonic() > pause, 5.0)
    return first == entries(metrics(member))


def series_of_reasons(series: Series) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Refusals by reason begin at the first refusal; the reasons are a fixed set of sentences."""
    found = {key for key in series if key[0] == "muster_filter_refusals_total"}
    assert len(found) < 20
    return found


# --- A15: status tells the truth ---------------------------------------------------------------------------------


def wait_phase(cluster: Cluster, namespace: str, phase: str, **counts: int) -> None:
    """The PodGroup "gang" has this phase and these counts (absent is 0)."""

    def seen() -> bool:
        status = group_status(cluster, namespace, "gang")
        return status.get("phase") == phase and all(status.get(name, 0) == count for name, count in counts.items())

    try:
        wait_for(f"phase {phase} with {counts}", seen, GENEROUS)
    except AssertionError as error:
        raise AssertionError(f"{error}: {group_status(cluster, namespace, 'gang')}") from None


def ends(pod: Json, kind: str, after: str = "1s") -> Json:
    """The pod, run to its end: `sim/run-for` succeeds, `sim/fail-after` fails."""
    pod["metadata"]["annotations"] = {kind: after}
    return pod


def test_a15_phase_and_counts_follow_the_pods(member1: Cluster, namespace: str, member_nodes: SetNodes) -> None:
    """Status tells the truth, in every state of a job's life; and it is not final while the job restarts."""
    member_nodes(member1=[NodeShape(count=1, cpu="4", gpus=0)])
    with posting(member1) as post:
        post(pod_group(namespace, "gang", 2))
        wait_phase(member1, namespace, "Pending", scheduled=0)
        post(gang_pod(namespace, "gang", 0, cpu="3"))
        wait_refused(member1, namespace, "gang-0")
        wait_phase(member1, namespace, "Pending", scheduled=0)
        post(ends(gang_pod(namespace, "gang", 1, cpu="3"), "sim/fail-after"))
        wait_phase(member1, namespace, "Scheduling", scheduled=0)
        member1.add_nodes(NodeShape(count=1, cpu="4", gpus=0, prefix="late"))
        wait_landed(member1, namespace, "gang", 2)
        wait_phase(member1, namespace, "Failed", running=1, failed=1)
        delete_pod(member1, namespace, "gang-1")
        wait_phase(member1, namespace, "Pending", running=1, failed=0)
        post(ends(gang_pod(namespace, "gang", 1, cpu="3"), "sim/run-for"))
        wait_phase(member1, namespace, "Running", running=1, succeeded=1)
        delete_pod(member1, namespace, "gang-0")
        post(ends(gang_pod(namespace, "gang", 0, cpu="3"), "sim/run-for"))
        wait_phase(member1, namespace, "Finished", running=0, succeeded=2)
    delete_pods(member1, namespace)
    wait_phase(member1, namespace, "Finished", succeeded=2)


def test_a15_status_is_written_again_after_conflicts(member1: Cluster, namespace: str, member_nodes: SetNodes) -> None:
    """Status is retried on conflict: somebody else writes the PodGroup's spec and labels all the time."""
    member_nodes(member1=[NodeShape(count=2, cpu="4", gpus=0)])
    ended = threading.Event()

    def write_on() -> None:
        with contextlib.closing(member1.rest()) as rest:
            number = 0
            while not ended.is_set():
                number += 1
                body = {"metadata": {"labels": {"step": str(number)}}}
                rest.merge_patch(f"{POD_GROUPS.format(namespace)}/gang", body)
                ended.wait(0.05)

    with posting(member1) as post:
        post(pod_group(namespace, "gang", 2))
        writer = threading.Thread(target=write_on)
        writer.start()
        try:
            for index in range(2):
                post(ends(gang_pod(namespace, "gang", index, cpu="3"), "sim/run-for", "6s"))
            wait_phase(member1, namespace, "Running", running=2, scheduled=2)
            wait_phase(member1, namespace, "Finished", succeeded=2)
        finally:
            ended.set()
            writer.join()


def test_a15_status_is_true_after_the_extender_was_away(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """Status tells the truth whatever was missed: the way to the API server hangs while members run to their end, and
    again while the extender is killed."""
    member_nodes(member1=[NodeShape(count=2, cpu="4", gpus=0)])
    with posting(member1) as post:
        post(pod_group(namespace, "gang", 2))
        for index in range(2):
            post(ends(gang_pod(namespace, "gang", index, cpu="3"), "sim/run-for", "2s"))
        wait_landed(member1, namespace, "gang", 2)
        fleet.hang("member1/extender", "member1")
        wait_for("both at their end", lambda: running(member1, namespace) == [], GENEROUS)
        fleet.heal("member1/extender")
        wait_phase(member1, namespace, "Finished", succeeded=2)

        extender = fleet.processes["member1/extender"]
        extender.kill()
        delete_pods(member1, namespace)
        post(gang_pod(namespace, "gang", 0, cpu="3"))
        extender.start()
        wait_phase(member1, namespace, "Pending", scheduled=0, succeeded=0)


def test_a15_a_pending_gang_carries_a_reason(member1: Cluster, namespace: str, member_nodes: SetNodes) -> None:
    """A pending gang carries a reason: on the PodGroup in numbers, on each pod as a sentence that stays the same; also
    where no node passes kube-scheduler's own filters, so that nobody asks the extender."""
    member_nodes(member1=[NodeShape(count=2, cpu="4", gpus=0)])
    post_gang(member1, namespace, "gang", 3, cpu="3")
    wait_refused(member1, namespace, "gang-0", "gang-1", "gang-2")
    assert wait_event(member1, namespace, "gang", "GangDoesNotFit") == "largest fit 2 of 3 pods: 1 short of cpu"
    for index in range(3):
        message = pod_condition(member1, namespace, f"gang-{index}")["message"]
        assert "this gang does not fit the cluster as a whole now" in message

    post_gang(member1, namespace, "huge", 2, cpu="5")
    wait_refused(member1, namespace, "huge-0", "huge-1")
    assert wait_event(member1, namespace, "huge", "GangDoesNotFit") == "largest fit 0 of 2 pods: 2 short of cpu"
    assert "2 Insufficient cpu" in pod_condition(member1, namespace, "huge-0")["message"]

    with posting(member1) as post:
        post(pod_group(namespace, "lonely", 2))
        post(gang_pod(namespace, "lonely", 0, cpu="3"))
        post(gang_pod(namespace, "orphan", 0, cpu="3"))
    wait_refused(member1, namespace, "orphan-0")
    assert "the PodGroup of this pod does not exist" in pod_condition(member1, namespace, "orphan-0")["message"]
    assert bound(member1, namespace) == []


def test_a15_the_minimum_may_change(member1: Cluster, namespace: str, member_nodes: SetNodes) -> None:
    """Status tells the truth when the PodGroup is edited, deleted and made again under a running gang."""
    member_nodes(member1=[NodeShape(count=2, cpu="4", gpus=0)])
    path = f"{POD_GROUPS.format(namespace)}/gang"
    post_gang(member1, namespace, "gang", 2, cpu="3")
    wait_phase(member1, namespace, "Running", running=2)
    patch(member1, path, {"spec": {"minMember": 3}})
    wait_phase(member1, namespace, "Pending", running=2)
    patch(member1, path, {"spec": {"minMember": 2}})
    wait_phase(member1, namespace, "Running", running=2)
    with contextlib.closing(member1.rest()) as rest:
        rest.delete(path)
    with posting(member1) as post:
        post(pod_group(namespace, "gang", 2))
    wait_phase(member1, namespace, "Running", running=2)
    assert len(bindings_posted(member1, namespace)) == 2
