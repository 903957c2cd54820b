"""What ends by a limit of its own, on an extender whose limits are short: half gangs, gangs below their minimum, and
the wait for a claim (A3, A6, A8)."""

from collections.abc import Iterator

import pytest

from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.spec import NodeShape
from tests.fleet.conftest import SetNodes
from tests.fleet.gang_stories import (
    delete_pod,
    denied_bindings,
    pod_template,
    post_gang,
    reservation,
    reserved,
    stream,
    wait_event,
    wait_reservation,
)
from tests.fleet.stories import (
    GENEROUS,
    Json,
    Stopwatch,
    assert_no_node_overcommitted,
    bindings_posted,
    bound,
    delete_pods,
    plain_pod,
    posting,
    requested_cpu,
    running,
    wait_landed,
)

LIMIT = 3
"""Seconds a gang may be half, or below its minimum; by default it is minutes."""


@pytest.fixture(scope="module")
def impatient(whole_fleet: Fleet) -> Iterator[None]:
    """member1's extender with short limits."""
    with whole_fleet.processes["member1/extender"].with_arguments(
        f"--heal-limit={LIMIT}", f"--below-minimum-limit={LIMIT}", "--claim-after=2", "--claim-again=0.5"
    ):
        yield


pytestmark = pytest.mark.usefixtures("impatient")


def test_a3_what_cannot_be_healed_is_evicted_whole_and_reported(
    member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """A failed bind after siblings are bound: after a stated limit (here 3 s) cleaned up and reported."""
    member_nodes(member1=[NodeShape(count=3, cpu="4", gpus=0)])
    with denied_bindings(member1, namespace, "gang-2"):
        since = member1.audit_mark()
        post_gang(member1, namespace, "gang", 3, cpu="3")
        wait_for("two siblings bound", lambda: len(bindings_posted(member1, namespace, since)) == 2, GENEROUS)
        with Stopwatch("from half a gang to none (limit 3 s)"):
            wait_for("the bound ones evicted", lambda: bound(member1, namespace) == [], GENEROUS)
        evicted = [e.name for e in member1.audit_events(since) if e.target == "pods/eviction" and e.code == 201]
        assert sorted(evicted) == ["gang-0", "gang-1"]
        for name in ("gang", "gang-0", "gang-1", "gang-2"):
            wait_event(member1, namespace, name, "GangEvicted")
        with posting(member1) as post:
            post(plain_pod(namespace, "next", cpu="3"))
        wait_for("its room is free", lambda: bound(member1, namespace) == ["next"], GENEROUS)


def test_a6_a_gang_that_stays_below_its_minimum_is_evicted_whole_and_reported(
    member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """A running gang gets its lost member back; where nobody makes it anew for a stated time, the rest goes too."""
    member_nodes(member1=[NodeShape(count=3, cpu="4", gpus=0)])
    post_gang(member1, namespace, "gang", 3, cpu="3")
    wait_landed(member1, namespace, "gang", 3)
    delete_pod(member1, namespace, "gang-1")
    with Stopwatch(f"from the loss of a member to the end of the gang (limit {LIMIT} s)"):
        wait_for("the rest evicted", lambda: bound(member1, namespace) == [], GENEROUS)
    wait_event(member1, namespace, "gang", "GangEvicted")


def test_a8_a_stream_of_small_pods_does_not_starve_a_gang(
    member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """A stream of small pods must not starve a gang for ever.

    Two nodes of 4 CPUs; small pods of 1 CPU come faster than they end, so there is never a whole node free. The gang
    of two whole nodes claims them once it has waited (here 2 s), and lands when the small ones there have ended.
    """
    member_nodes(member1=[NodeShape(count=2, cpu="4", gpus=0)])

    def small(number: int) -> Json:
        pod = plain_pod(namespace, f"small-{number}", cpu="1")
        pod["metadata"]["annotations"] = {"sim/run-for": "1500ms"}
        return pod

    with stream(member1, small, every=0.1) as names:
        wait_for("full of small pods", lambda: len(running(member1, namespace)) == 8, GENEROUS)
        with Stopwatch("a gang beside a stream of small pods (claims after 2 s)"):
            post_gang(member1, namespace, "gang", 2, cpu="4")
            wait_landed(member1, namespace, "gang", 2)
        came = len(names)
        delete_pods(member1, namespace, "gang-")
        with Stopwatch("from the gang's end to the next small pod"):
            wait_for("small ones go on", lambda: len(bound(member1, namespace, "small-")) > 0 and len(names) > came)
            wait_for("full again", lambda: len(running(member1, namespace, "small-")) == 8, GENEROUS)
    assert_no_node_overcommitted(member1, requested_cpu)


def test_a8_a_stream_of_small_pods_does_not_starve_a_reservation(
    member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """A stream of small pods must not starve a gang of the hub either: its reservation asks for a claim."""
    member_nodes(member1=[NodeShape(count=2, cpu="4", gpus=0)])

    def small(number: int) -> Json:
        pod = plain_pod(namespace, f"small-{number}", cpu="1")
        pod["metadata"]["annotations"] = {"sim/run-for": "1500ms"}
        return pod

    wanted = reservation(namespace, "train", {"worker": (2, pod_template(cpu="4"))}, claim=True)
    with stream(member1, small, every=0.1):
        wait_for("full of small pods", lambda: len(running(member1, namespace)) == 8, GENEROUS)
        with Stopwatch("from the claim to the promise"), reserved(member1, wanted) as name:
            wait_reservation(member1, name, "Reserved")
        wait_for("given back, full again", lambda: len(running(member1, namespace)) == 8, GENEROUS)
