"""The walk-through of the README, with its YAML unchanged, on real control planes."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.up import kubectl_path
from tests.fleet.stories import GENEROUS, hub_job, load_example, nothing_left, running

JOB = "pytorch-test"
AGE = r"\d+[smhd](\d+[smh])?"


@pytest.fixture
def hub_default(fleet: Fleet) -> Iterator[Cluster]:
    """The hub, with nothing of the walk-through in namespace default, before and afterwards."""
    empty_default(fleet)
    yield fleet.hub
    fleet.restore()
    empty_default(fleet)


def empty_default(fleet: Fleet) -> None:
    fleet.hub.kubectl("delete", "pytorchjob", "--all", "-n", "default", "--timeout=60s")
    fleet.hub.kubectl("delete", "propagationpolicy", "--all", "-n", "default")
    fleet.hub.kubectl("delete", "elasticquotatree", "--all", "-n", "kube-system")
    nothing_left(fleet, "default")


def amc(hub: Cluster, *arguments: str) -> str:
    """`kubectl amc …` as the user types it: kubectl finds the plugin on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(kubectl_path()), "amc", *arguments],
        env=os.environ | {"KUBECONFIG": str(hub.kubeconfig), "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_until_all_run(fleet: Fleet, job: str = JOB) -> Cluster:
    """Three running pods in one member; returns that member."""

    def where() -> Cluster | None:
        for member in fleet.members.values():
            if len(running(member, "default", f"{job}-")) == 3:
                return member
        return None

    found: Cluster = wait_for(f"three running pods of {job} in one member", where, GENEROUS)
    return found


def assert_the_pages_tables(hub: Cluster, cluster: str) -> None:
    """Step 3 of the page, command by command."""
    header, row = hub.kubectl("get", "pytorchjob").stdout.splitlines()[:2]
    assert header.split() == ["NAME", "STATE", "AGE"]
    assert re.fullmatch(rf"{JOB} +(Created|Running) +{AGE}", row)

    described = hub.kubectl("describe", "pytorchjob", JOB).stdout
    line = f"Binding has been scheduled successfully. Result: {{{cluster}:0,[{{master 1}} {{worker 2}}]}}"
    assert re.search(rf"Normal +ScheduleBindingSucceed +{AGE}.* default-scheduler +{re.escape(line)}", described)

    header, row = amc(hub, "get", "pytorchjob", "-M").splitlines()
    assert header.split() == ["NAME", "CLUSTER", "STATE", "AGE", "ADOPTION"]
    assert re.fullmatch(rf"{JOB} +{cluster} +(Created|Running) +{AGE} +Y", row)

    header, *rows = amc(hub, "get", "pod", "-M").splitlines()
    assert header.split() == ["NAME", "CLUSTER", "READY", "STATUS", "RESTARTS", "AGE"]
    assert [row.split()[0] for row in rows] == [f"{JOB}-master-0", f"{JOB}-worker-0", f"{JOB}-worker-1"]
    assert all(re.fullmatch(rf"\S+ +{cluster} +1/1 +Running +0 +{AGE}", row) for row in rows)

    copy = yaml.safe_load(amc(hub, "get", "pytorchjob", JOB, "-m", cluster, "-oyaml"))
    assert (copy["kind"], copy["metadata"]["name"]) == ("PyTorchJob", JOB)


@pytest.mark.parametrize(
    ("operator", "dialect"),
    [("real", "training-operator"), ("standin", "training-operator"), ("standin", "arena")],
    ids=["real-operator", "standin", "standin-arena-dialect"],
)
def test_gang_mode(fleet: Fleet, hub_default: Cluster, operator: str, dialect: str) -> None:
    for name in fleet.members:
        fleet.set_operator(name, operator, dialect)
    hub_default.apply(load_example("propagationpolicy-gang.yaml"), load_example("pytorchjob.yaml"))

    member = wait_until_all_run(fleet)
    wait_for("STATE Running on the hub", lambda: "Running" in hub_default.kubectl("get", "pytorchjob").stdout)

    assert_the_pages_tables(hub_default, member.name)
    copy = yaml.safe_load(amc(hub_default, "get", "pytorchjob", JOB, "-m", member.name, "-oyaml"))
    where = copy["spec"] if dialect == "arena" else copy["spec"]["runPolicy"]
    assert where["cleanPodPolicy"] == "None", "the policy stands where this member's operator reads it"
    schedulers = {r["template"]["spec"]["schedulerName"] for r in copy["spec"]["pytorchReplicaSpecs"].values()}
    assert schedulers == {"muster"}, "Master said default-scheduler, Worker nothing: one name for all"


def test_queue_mode_runs_one_job_after_another(fleet: Fleet, hub_default: Cluster) -> None:
    hub_default.apply(load_example("elasticquotatree.yaml"))
    listed = wait_for(
        "a Queue for each node of the tree",
        lambda: len(rows := hub_default.kubectl("get", "queue", "-n", "kube-queue").stdout.splitlines()) == 3 and rows,
    )
    assert listed[0].split() == ["NAME", "AGE"]
    alphabet = "[bcdfghjklmnpqrstvwxz2456789]{5}"
    assert re.fullmatch(rf"root-child-2-{alphabet} +{AGE}", listed[1])
    assert re.fullmatch(rf"root-{alphabet} +{AGE}", listed[2])

    hub_default.apply(load_example("propagationpolicy-queue.yaml"), load_example("pytorchjob.yaml"))
    first = wait_until_all_run(fleet)
    assert_the_pages_tables(hub_default, first.name)

    second = f"{JOB}-2"
    hub_default.apply(load_example("pytorchjob.yaml").replace(f"name: {JOB}\n", f"name: {second}\n"))
    message = wait_for(
        "the second job says why it waits",
        lambda: (
            hub_default.kubectl(
                "get",
                "resourcebinding",
                f"{second}-pytorchjob",
                "-o",
                'jsonpath={.status.conditions[?(@.type=="Scheduled")].message}',
                check=False,
            ).stdout
        ),
        GENEROUS,
    )
    assert "queue root/child-2: max-jobs 1 of 1 used" in message
    units = hub_default.kubectl("get", "queueunit").stdout
    assert re.search(rf"{JOB}-pytorchjob-rb-qu +(Dequeued|Running)", units)
    assert re.search(rf"{second}-pytorchjob-rb-qu +Enqueued", units)
    assert not [p for m in fleet.members.values() for p in running(m, "default", f"{second}-")]

    hub_default.kubectl("delete", "pytorchjob", JOB, "--timeout=60s")
    assert hub_job(hub_default, "default", JOB) is None
    wait_until_all_run(fleet, second)


def test_a_finished_job_says_so_on_the_hub(hub_default: Cluster) -> None:
    """STATE on the hub follows the member's operator to the end."""
    job = load_example("pytorchjob.yaml").replace(
        "        metadata:\n          labels:",
        "        metadata:\n          annotations: {sim/run-for: 1s}\n          labels:",
    )
    hub_default.apply(load_example("propagationpolicy-gang.yaml"), job)
    wait_for(
        "STATE Succeeded on the hub",
        lambda: " Succeeded " in hub_default.kubectl("get", "pytorchjob").stdout,
        GENEROUS,
    )
