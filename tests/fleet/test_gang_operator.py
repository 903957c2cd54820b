"""Gangs with the real training operator's own gang flag on: it makes, rewrites and deletes the PodGroup of a job."""

import contextlib
from collections.abc import Iterator

import pytest

from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.spec import NodeShape
from tests.fleet.conftest import SetNodes
from tests.fleet.gang_stories import (
    POD_GROUPS,
    TEST_HUB,
    dispatch,
    group_status,
    pod_template,
    reservation,
    reservation_status,
    reserved,
    wait_refused,
    wait_reservation,
)
from tests.fleet.stories import (
    GENEROUS,
    Json,
    Stopwatch,
    assert_bound_once,
    bindings_posted,
    bound,
    pod_group,
    pods,
    pytorch_job,
    read,
    running,
    state_of,
    wait_landed,
)

JOBS = "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs"


@pytest.fixture
def gang_operator(fleet: Fleet) -> None:
    """member1's operator makes gangs for scheduler-plugins; the `fleet` fixture puts the former one back."""
    fleet.set_operator("member1", "real", options=("--gang-scheduler-name=scheduler-plugins-scheduler",))


@contextlib.contextmanager
def job_in(member: Cluster, document: Json) -> Iterator[str]:
    """A PyTorchJob in the member for the length of the block; yields its path."""
    base = JOBS.format(document["metadata"]["namespace"])
    path = f"{base}/{document['metadata']['name']}"
    with contextlib.closing(member.rest()) as rest:
        rest.post(base, document)
        try:
            yield path
        finally:
            rest.delete(path)


def with_scheduler(job: Json, **metadata: Json) -> Json:
    """The job with one schedulerName for all, as dispatch writes it, and metadata on all pod templates."""
    for role, spec in job["spec"]["pytorchReplicaSpecs"].items():
        spec["template"]["spec"]["schedulerName"] = "muster"
        if metadata:
            spec["template"]["metadata"] = {
                "annotations": spec["template"]["metadata"].get("annotations", {}) | metadata["annotations"],
                "labels": metadata["labels"] | {"muster.dev/role": role.lower()},
            }
    return job


@pytest.mark.usefixtures("gang_operator")
def test_the_operators_own_pod_groups(fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes) -> None:
    """A user's job, then one of the hub. Of the user's the operator's PodGroup says how many; of the hub's the
    reservation does, whatever the operator makes of the PodGroup."""
    member_nodes(member1=[NodeShape(count=2, cpu="4", gpus=0)])
    with job_in(member1, with_scheduler(pytorch_job(namespace, "own", workers=2, cpu="3"))):
        wait_for("its three pods", lambda: len(pods(member1, namespace)) == 3, GENEROUS)
        wait_refused(member1, namespace, "own-master-0", "own-worker-0", "own-worker-1")
        assert bound(member1, namespace) == []
        with Stopwatch("from a third node to the job's last binding", "1 s"):
            member1.add_nodes(NodeShape(count=1, cpu="4", gpus=0))
            wait_landed(member1, namespace, "own", 3)
        wait_for("Running", lambda: group_status(member1, namespace, "own").get("phase") == "Running", GENEROUS)
    wait_for("its pods gone", lambda: pods(member1, namespace) == [], GENEROUS)

    wanted = reservation(
        namespace, "train", {"master": (1, pod_template(cpu="3")), "worker": (2, pod_template(cpu="3"))}
    )
    identity = {
        "muster.dev/hub-id": TEST_HUB,
        "muster.dev/id": wanted["spec"]["id"],
        "muster.dev/epoch": "1",
    }
    job = with_scheduler(
        pytorch_job(namespace, "train", workers=2, cpu="3", run_for="4s"),
        annotations=identity,
        labels={"scheduling.x-k8s.io/pod-group": "train"},
    )
    job["metadata"]["annotations"] = identity
    job["spec"]["runPolicy"]["schedulingPolicy"] = {"minAvailable": 1}  # what the operator's PodGroup will say
    with reserved(member1, wanted) as name, contextlib.closing(member1.rest()) as rest:
        wait_reservation(member1, name, "Reserved")
        dispatch(fleet, member1, name)
        group = pod_group(namespace, "train", 3)
        group["metadata"]["annotations"] = identity
        rest.post(POD_GROUPS.format(namespace), group)
        with job_in(member1, job) as path:
            wait_landed(member1, namespace, "train", 3)
            wait_reservation(member1, name, "Landed")
            rest.delete(f"{POD_GROUPS.format(namespace)}/train")
            wait_for("all run on", lambda: len(running(member1, namespace, "train-")) == 3, GENEROUS)
            wait_for("the job ends well", lambda: state_of(read(member1, path)) == "Succeeded", GENEROUS)
            wait_for("the end is noted", lambda: reservation_status(member1, name).get("podsEnded"), GENEROUS)
    assert_bound_once(bindings_posted(member1, namespace))
    assert [e for e in member1.audit_events() if e.namespace == namespace and e.target == "pods/eviction"] == []
