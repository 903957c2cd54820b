"""The dispatcher on real control planes: a job's whole life, its narrow identity, and a member that hangs."""

import pytest

from hack.fleet import pki
from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.spec import NodeShape
from tests.fleet.conftest import SetNodes
from tests.fleet.stories import (
    GENEROUS,
    Json,
    Stopwatch,
    bound,
    condition,
    events_about,
    hub_job,
    nothing_left,
    policy,
    pytorch_job,
    read,
    resource_binding,
    state_of,
    wait_landed,
)

DISPATCHER = pki.USERS[pki.DISPATCHER][0]
SMALL = NodeShape(count=3, cpu="4", gpus=0)


def test_a_job_from_the_hubs_yaml_to_its_end(
    fleet: Fleet, hub: Cluster, member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """Reserved, dispatched, landed, run, mirrored, released; the hub keeps its TTL; nothing is left."""
    member_nodes(member1=[SMALL], member2=[])
    job = pytorch_job(namespace, "train", workers=2, run_for="2s")
    job["spec"]["runPolicy"]["ttlSecondsAfterFinished"] = 5
    with Stopwatch("from the hub's YAML to three bound pods", "2 s"):
        hub.apply(policy(namespace), job)
        wait_landed(member1, namespace, "train", 3)
    wait_for(
        "the event", lambda: any(e["reason"] == "ScheduleBindingSucceed" for e in events_about(hub, namespace, "train"))
    )
    event = next(e for e in events_about(hub, namespace, "train") if e["reason"] == "ScheduleBindingSucceed")
    assert event["message"] == ("Binding has been scheduled successfully. Result: {member1:0,[{master 1} {worker 2}]}")
    assert (event["type"], event["source"]["component"]) == ("Normal", "default-scheduler")
    wait_for("succeeded", lambda: state_of(hub_job(hub, namespace, "train")) == "Succeeded", GENEROUS)
    found = resource_binding(hub, namespace, "train")
    if found is not None:  # its TTL may have run out by now
        assert found["spec"]["result"]["state"] == "Succeeded"
    wait_for("gone by its TTL", lambda: hub_job(hub, namespace, "train") is None, GENEROUS)
    nothing_left(fleet, namespace)


def test_the_dispatcher_is_never_refused_and_never_asks_for_more(
    fleet: Fleet, hub: Cluster, member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """Its roles hold all that it needs: no answer 403 in any audit log, and no verb that its task does not call for."""
    member_nodes(member1=[SMALL], member2=[])
    marks = {name: cluster.audit_mark() for name, cluster in fleet.clusters.items()}
    hub.apply(policy(namespace), pytorch_job(namespace, "train", workers=1, run_for="1s"))
    wait_for("succeeded", lambda: state_of(hub_job(hub, namespace, "train")) == "Succeeded", GENEROUS)
    hub.kubectl("delete", "pytorchjob", "train", "-n", namespace)
    nothing_left(fleet, namespace)
    for name, cluster in fleet.clusters.items():
        events = [e for e in cluster.audit_events(marks[name]) if e.user == DISPATCHER]
        assert events or name == "member2", f"nothing of the dispatcher in {name}'s audit log"
        # A namespace that another test left behind refuses new events while it is being terminated.
        assert [e for e in events if e.code == 403 and e.namespace in ("", namespace, "muster-system")] == []
        touched = {(e.verb, e.target) for e in events if e.verb not in ("get", "list", "watch")}
        assert not {target for _, target in touched} & {"pods", "pods/binding", "nodes", "secrets"}
    refused = [
        line
        for line in fleet.processes["hub/dispatcher"].log.read_text().splitlines()
        if "403 Forbidden" in line and "because it is being terminated" not in line
    ]
    assert refused == [], "reads are in no audit log"


@pytest.mark.parametrize(
    "question",
    [
        ("hub", "delete", "secrets", "muster-system"),
        ("hub", "create", "pods", "default"),
        ("hub", "update", "memberclusters.muster.dev", ""),
        ("member1", "create", "pods", "default"),
        ("member1", "delete", "pods", "default"),
        ("member1", "create", "pods/exec", "default"),
        ("member1", "update", "nodes", ""),
        ("member1", "list", "secrets", "default"),
        ("member1", "delete", "namespaces", ""),
        ("member1", "update", "leases.coordination.k8s.io/muster-extender", "muster-system"),
    ],
    ids=" ".join,
)
def test_the_dispatcher_may_not(fleet: Fleet, question: tuple[str, str, str, str]) -> None:
    where, verb, what, namespace = question
    scope = ("-n", namespace) if namespace else ()
    answer = fleet.clusters[where].kubectl("auth", "can-i", verb, what, "--as", DISPATCHER, *scope, check=False)
    assert answer.stdout.strip() == "no", answer.stdout


def test_a_member_that_hangs_slows_no_other(
    fleet: Fleet, hub: Cluster, member2: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """F5: it accepts connections and never answers. Its own condition says so; jobs go elsewhere meanwhile."""
    member_nodes(member1=[SMALL], member2=[SMALL])
    fleet.hang("hub/dispatcher", "member1")
    hub.apply(policy(namespace))
    wait_for("member1 is not ready", lambda: ready(hub, "member1")["status"] == "False", GENEROUS)
    with Stopwatch("to three bound pods beside a member that hangs"):
        hub.apply(pytorch_job(namespace, "train", workers=2))
        wait_landed(member2, namespace, "train", 3)
    assert ready(hub, "member1")["reason"] == "ClusterNotReachable"
    fleet.heal("hub/dispatcher", "member1")
    wait_for("member1 is ready again", lambda: ready(hub, "member1")["status"] == "True", GENEROUS)


def test_deleting_a_running_job_takes_everything_away(
    fleet: Fleet, hub: Cluster, member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    member_nodes(member1=[SMALL], member2=[])
    hub.apply(policy(namespace), pytorch_job(namespace, "train", workers=2))
    wait_landed(member1, namespace, "train", 3)
    with Stopwatch("from kubectl delete to its return, all pods gone"):
        hub.kubectl("delete", "pytorchjob", "train", "-n", namespace, "--timeout=60s")
        assert bound(member1, namespace) == []
    nothing_left(fleet, namespace)


def test_a_copy_deleted_by_hand_is_made_again_as_a_new_attempt(
    fleet: Fleet, hub: Cluster, member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    """Rule 5: never posted again under its epoch."""
    member_nodes(member1=[SMALL], member2=[])
    hub.apply(policy(namespace), pytorch_job(namespace, "train", workers=2))
    wait_landed(member1, namespace, "train", 3)
    member1.kubectl("delete", "pytorchjob", "train", "-n", namespace)
    wait_for("another attempt", lambda: attempt(hub, namespace).get("epoch", 0) >= 2, GENEROUS)
    wait_landed(member1, namespace, "train", 3)
    wait_for("running", lambda: state_of(hub_job(hub, namespace, "train")) == "Running", GENEROUS)


def attempt(hub: Cluster, namespace: str) -> Json:
    found = resource_binding(hub, namespace, "train")
    return (found or {}).get("spec", {}).get("attempt") or {}


def ready(hub: Cluster, member: str) -> Json:
    return condition(read(hub, f"/apis/muster.dev/v1alpha1/memberclusters/{member}"), "Ready")
