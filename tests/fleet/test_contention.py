"""Two gangs that fit one at a time (A1): exactly one lands, the other holds nothing at any moment."""

import contextlib
import random
import statistics

import pytest

from hack.fleet.fleet import Cluster, wait_for
from hack.fleet.spec import NodeShape
from tests.fleet.conftest import SetNodes
from tests.fleet.stories import (
    GENEROUS,
    assert_bound_once,
    bindings_posted,
    bound,
    delete_pods,
    gang_pod,
    pod_group,
    posting,
    seconds_between,
)

ROUNDS = 20
SIZE = 4
SEED = 20


@pytest.mark.parametrize("scheduler", ["default-scheduler", "muster"])
def test_of_two_interleaved_gangs_exactly_one_lands(
    member1: Cluster, namespace: str, member_nodes: SetNodes, scheduler: str
) -> None:
    """Four nodes hold one gang of four. The audit log is the witness: it has every Binding the API server took, so
    the loser's count is known for every moment, not only for those at which somebody looked."""
    member_nodes(member1=[NodeShape(count=4, cpu="4", gpus=0)])
    order = random.Random(SEED)
    print(f"\n  seed {SEED}")
    gaps = []
    for number in range(ROUNDS):
        gangs = [f"a{number}", f"b{number}"]
        since = member1.audit_mark()
        members = [(gang, index) for index in range(SIZE) for gang in order.sample(gangs, 2)]
        with posting(member1) as post:
            for gang in gangs:
                post(pod_group(namespace, gang, SIZE))
            for gang, index in members:
                post(gang_pod(namespace, gang, index, cpu="3", schedulerName=scheduler))

        winner = wait_whole(member1, namespace, gangs)
        loser = gangs[1] if winner == gangs[0] else gangs[0]
        before = bindings_posted(member1, namespace, since)
        assert [e.name for e in before if e.name.startswith(f"{loser}-")] == []
        gaps.append(seconds_between(before[0], before[-1]))

        delete_pods(member1, namespace, f"{winner}-")
        assert wait_whole(member1, namespace, [loser]) == loser
        events = bindings_posted(member1, namespace, since)
        assert_bound_once(events)
        assert len(events) == 2 * SIZE
        first_of_loser = next(i for i, e in enumerate(events) if e.name.startswith(f"{loser}-"))
        assert {e.name.split("-")[0] for e in events[:first_of_loser]} == {winner}
        delete_pods(member1, namespace)
        with contextlib.closing(member1.rest()) as rest:
            for gang in gangs:
                rest.delete(f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{namespace}/podgroups/{gang}")
    print(
        f"\n  {ROUNDS} rounds; the winner's first to last Binding:"
        f" median {statistics.median(gaps) * 1000:.1f} ms, longest {max(gaps) * 1000:.1f} ms"
    )


def wait_whole(member: Cluster, namespace: str, gangs: list[str]) -> str:
    """The first of these gangs that is bound whole."""

    def whole() -> str:
        return next((gang for gang in gangs if len(bound(member, namespace, f"{gang}-")) == SIZE), "")

    found: str = wait_for(f"one of {gangs} bound whole", whole, GENEROUS)
    return found
