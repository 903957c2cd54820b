"""Queue mode on real control planes: turns, tables, borrowing and giving back, the user's own switches."""

import re
import uuid
from collections.abc import Callable, Iterator

import pytest

from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.spec import NodeShape
from tests.fleet.conftest import SetNodes, create_namespace, made_whole, remove_namespace
from tests.fleet.stories import (
    GENEROUS,
    Json,
    Stopwatch,
    bound,
    condition,
    hub_job,
    load_example,
    nothing_left,
    policy,
    pytorch_job,
    resource_binding,
    running,
    state_of,
)

TREE = "elasticquotatree"


@pytest.fixture
def tree(fleet: Fleet) -> Iterator[Callable[[Json], None]]:
    """A function that puts a quota tree in force (its root); it goes with the test."""

    def apply(root: Json) -> None:
        fleet.hub.apply(
            {
                "apiVersion": "scheduling.sigs.k8s.io/v1beta1",
                "kind": "ElasticQuotaTree",
                "metadata": {"name": TREE, "namespace": "kube-system"},
                "spec": {"root": root},
            }
        )

    fleet.hub.kubectl("delete", "elasticquotatree", "--all", "-n", "kube-system")
    yield apply
    with made_whole(fleet):
        fleet.hub.kubectl("delete", "elasticquotatree", "--all", "-n", "kube-system")


@pytest.fixture
def teams(fleet: Fleet, member_nodes: SetNodes) -> Iterator[tuple[str, str]]:
    """Two namespaces with a queue policy each, and one member that has eight CPUs in all."""
    names = [f"team-{side}-{uuid.uuid4().hex[:6]}" for side in "ab"]
    for name in names:
        for cluster in fleet.clusters.values():
            create_namespace(cluster, name)
        fleet.hub.apply(policy(name, queued=True))
    member_nodes(member1=[NodeShape(count=4, cpu="2", gpus=0)], member2=[])
    yield names[0], names[1]
    with made_whole(fleet):
        for name in names:
            remove_namespace(fleet, name)


def node(name: str, *children: Json, namespaces: list[str] | None = None, **limits: int) -> Json:
    """min, max: CPUs."""
    found: Json = {"name": name} | {bound_: {"cpu": cpus} for bound_, cpus in limits.items()}
    if namespaces:
        found["namespaces"] = namespaces
    if children:
        found["children"] = list(children)
    return found


def elastic(teams: tuple[str, str]) -> Json:
    """Four of eight CPUs are guaranteed to each."""
    a, b = teams
    return node("root", node("a", namespaces=[a], min=4), node("b", namespaces=[b], min=4), min=8, max=8)


def phase(hub: Cluster, namespace: str, job: str) -> str:
    return str(((resource_binding(hub, namespace, job) or {}).get("status") or {}).get("phase", ""))


def why(hub: Cluster, namespace: str, job: str) -> str:
    return str(condition(resource_binding(hub, namespace, job), "Scheduled").get("message", ""))


def wait_phase(hub: Cluster, namespace: str, job: str, *phases: str) -> None:
    wait_for(f"{job} {' or '.join(phases)}", lambda: phase(hub, namespace, job) in phases, GENEROUS)


def run_gang(hub: Cluster, namespace: str, name: str) -> None:
    """Two pods of one CPU."""
    hub.apply(pytorch_job(namespace, name, workers=1))
    wait_phase(hub, namespace, name, "Running")


def test_three_copies_of_the_examples_job_run_one_after_another(fleet: Fleet, tree: object) -> None:
    """max-jobs 1: at no moment two of them; each says why it waits; the tables are those of the page."""
    hub = fleet.hub
    hub.kubectl("delete", "pytorchjob", "--all", "-n", "default", "--timeout=60s")
    hub.apply(load_example("elasticquotatree.yaml"), load_example("propagationpolicy-queue.yaml"))
    example = load_example("pytorchjob.yaml").replace(
        "        metadata:\n          labels:",
        "        metadata:\n          annotations: {sim/run-for: 2s}\n          labels:",
    )
    names = ["copy-1", "copy-2", "copy-3"]
    try:
        for name in names:
            hub.apply(example.replace("name: pytorch-test\n", f"name: {name}\n"))
        reason = "queue root/child-2: max-jobs 1 of 1 used"

        def described() -> str:
            text = hub.kubectl("describe", "pytorchjob", "copy-3").stdout
            return text if reason in text else ""

        assert "Job Enqueued" in wait_for("describe tells why the last copy waits", described, GENEROUS)

        header, *rows = hub.kubectl("get", "queue", "-n", "kube-queue").stdout.splitlines()
        assert header.split() == ["NAME", "AGE"]
        ours = [row for row in rows if row.startswith("root-")]
        assert any(re.match(r"root-child-2-[bcdfghjklmnpqrstvwxz2456789]{5} ", row) for row in ours)
        assert any(re.match(r"root-[bcdfghjklmnpqrstvwxz2456789]{5} ", row) for row in ours)

        header, *rows = hub.kubectl("get", "queueunit").stdout.splitlines()
        assert header.split() == ["NAME", "PHASE", "PRIORITY", "ADMISSIONS", "JOBTYPE", "AGE"]
        assert sorted(row.split()[0] for row in rows) == [f"{name}-pytorchjob-rb-qu" for name in names]
        assert {row.split()[1] for row in rows} <= {"Enqueued", "Reserved", "Dequeued", "Running", "Succeed"}

        at_once = []

        def all_ended() -> bool:
            admitted = [name for name in names if phase(hub, "default", name) in ("Reserving", "Scheduled", "Running")]
            at_once.append(len(admitted))
            return all(state_of(hub_job(hub, "default", name)) == "Succeeded" for name in names)

        wait_for("all three ended", all_ended, GENEROUS)
        assert max(at_once) <= 1
    finally:
        hub.kubectl("delete", "pytorchjob", "--all", "-n", "default", "--timeout=60s")
        hub.kubectl("delete", "propagationpolicy", "--all", "-n", "default")
        nothing_left(fleet, "default")


def test_borrowed_quota_is_given_back_whole(
    hub: Cluster, member1: Cluster, teams: tuple[str, str], tree: Callable[[Json], None]
) -> None:
    """Team A borrows all eight CPUs; team B, guaranteed four, asks for two: A's youngest gang goes whole, B's lands,
    and A's runs again when B's has gone."""
    a, b = teams
    tree(elastic(teams))
    for n in range(4):
        run_gang(hub, a, f"a{n}")
    with Stopwatch("from team B's job to its place"):
        hub.apply(pytorch_job(b, "b0", workers=1))
        wait_phase(hub, b, "b0", "Scheduled", "Running")
    wait_phase(hub, a, "a3", "Queued")
    assert bound(member1, a, "a3-") == []
    assert all(len(bound(member1, a, f"a{n}-")) == 2 for n in range(3))
    wait_for("a3 says why it waits", lambda: "queue root: cpu" in why(hub, a, "a3"), GENEROUS)
    hub.kubectl("delete", "pytorchjob", "b0", "-n", b, "--timeout=60s")
    wait_phase(hub, a, "a3", "Running")


@pytest.mark.long
def test_a_big_gang_gets_its_turn_against_a_stream_of_small_jobs(
    fleet: Fleet, hub: Cluster, member1: Cluster, teams: tuple[str, str], tree: Callable[[Json], None]
) -> None:
    """Four nodes of two CPUs; small jobs take one node each for 4 s and there is always another; the gang needs all
    four nodes and may claim them after 3 s."""
    a, _ = teams
    tree(node("root", node("a", namespaces=[a]), min=1000, max=1000))
    number = 0

    def small() -> None:
        nonlocal number
        hub.apply(pytorch_job(a, f"s{number}", workers=0, cpu="2", run_for="4s"))
        number += 1

    with fleet.processes["hub/dispatcher"].with_arguments("--claim-after-seconds", "3"):
        for _ in range(6):
            small()
        wait_for("every node is taken", lambda: len(bound(member1, a)) >= 4, GENEROUS)
        hub.apply(pytorch_job(a, "big", workers=3, cpu="2"))

        def landed() -> bool:
            small()
            return len(bound(member1, a, "big-")) == 4

        with Stopwatch("from the big gang's submission to its place"):
            wait_for("the big gang landed", landed, GENEROUS)


def test_suspend_gives_quota_and_place_back_and_resume_regains_them(
    hub: Cluster, member1: Cluster, teams: tuple[str, str], tree: Callable[[Json], None]
) -> None:
    a, _ = teams
    tree(node("root", node("a", namespaces=[a], max=2), min=8, max=8))
    run_gang(hub, a, "first")
    hub.apply(pytorch_job(a, "second", workers=1))
    wait_for("the second waits", lambda: "queue root/a: cpu" in why(hub, a, "second"), GENEROUS)

    def suspend(value: str) -> None:
        patch = f'{{"spec":{{"runPolicy":{{"suspend":{value}}}}}}}'
        hub.kubectl("patch", "pytorchjob", "first", "-n", a, "--type=merge", "-p", patch)

    suspend("true")
    wait_phase(hub, a, "second", "Running")
    assert phase(hub, a, "first") == "Held"
    assert bound(member1, a, "first-") == []
    suspend("false")
    wait_for("it is queued again", lambda: "queue root/a: cpu" in why(hub, a, "first"), GENEROUS)
    hub.kubectl("delete", "pytorchjob", "second", "-n", a, "--timeout=60s")
    wait_phase(hub, a, "first", "Running")
    assert len(running(member1, a, "first-")) == 2


def test_a_bad_tree_keeps_the_last_good_one_and_says_what_is_wrong(
    hub: Cluster, teams: tuple[str, str], tree: Callable[[Json], None]
) -> None:
    a, b = teams
    tree(elastic(teams))
    run_gang(hub, a, "before")
    bad = elastic(teams)
    bad["children"][1]["namespaces"] = [a, b]  # K4: a namespace on two leaves
    tree(bad)
    wait_for(
        "the tree says what is wrong",
        lambda: (
            "the last good tree stays in force"
            in hub.kubectl("describe", "elasticquotatree", TREE, "-n", "kube-system").stdout
        ),
        GENEROUS,
    )
    run_gang(hub, b, "after")
    quota = (resource_binding(hub, b, "after") or {})["spec"]["quota"]
    assert quota == "root/b"


def test_a_namespace_outside_the_tree_is_held_until_the_tree_has_it(
    hub: Cluster, teams: tuple[str, str], tree: Callable[[Json], None]
) -> None:
    a, b = teams
    tree(node("root", node("a", namespaces=[a]), min=8, max=8))
    hub.apply(pytorch_job(b, "outside", workers=1))
    wait_for("it says why", lambda: "is on no leaf of the quota tree" in why(hub, b, "outside"), GENEROUS)
    assert phase(hub, b, "outside") == "Held"
    tree(elastic(teams))
    wait_phase(hub, b, "outside", "Running")
