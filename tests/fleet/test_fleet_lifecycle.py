"""The local fleet itself: what every other fleet test stands on."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.fleet import pki
from hack.fleet.__main__ import main
from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.rest import Rest
from hack.fleet.spec import FleetSpec, MemberSpec, NodeShape
from hack.fleet.state import FleetError
from hack.fleet.up import down
from kube.api.api import NODES
from tests.fleet.conftest import SetNodes

SPEC = FleetSpec(
    members=(MemberSpec(name="member1", operator="real", nodes=(NodeShape(count=2),)),),
    without=frozenset({"extender", "dispatcher"}),
)


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("small-fleet")


@pytest.fixture(scope="module")
def shared(small_folder: Path) -> Iterator[Fleet]:
    """A hub and one member with stock scheduler and real training operator, without muster's own programs."""
    began = time.monotonic()
    with Fleet.running(small_folder, SPEC) as fleet:
        print(f"up in {time.monotonic() - began:.1f}s")
        yield fleet


@pytest.fixture
def small(shared: Fleet) -> Iterator[Fleet]:
    yield shared
    shared.restore()


@pytest.fixture
def member(small: Fleet) -> Iterator[Cluster]:
    """The member, emptied of pods and jobs afterwards."""
    yield small.members["member1"]
    small.restore()
    small.members["member1"].kubectl("delete", "pytorchjobs,pods", "--all", "--grace-period=0", "--force")


def pod(name: str, **annotations: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {k.replace("_", "/", 1): v for k, v in annotations.items()}},
        "spec": {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}]},
    }


def job(name: str, *, master: str = "Master") -> dict[str, Any]:
    """A Master that succeeds after 1 s, and a Worker of two."""

    def role(replicas: int) -> dict[str, Any]:
        return {
            "replicas": replicas,
            "restartPolicy": "Never",
            "template": {
                "metadata": {"annotations": {"sim/run-for": "1s"}},
                "spec": {"containers": [{"name": "pytorch", "image": "x", "resources": {"requests": {"cpu": "1"}}}]},
            },
        }

    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {master: role(1), "Worker": role(2)}},
    }


def phase(cluster: Cluster, name: str) -> str:
    found: str = cluster.get(f"/api/v1/namespaces/default/pods/{name}")["status"].get("phase", "")
    return found


def create_pod(cluster: Cluster, document: dict[str, Any]) -> None:
    with contextlib.closing(cluster.rest()) as rest:
        rest.post("/api/v1/namespaces/default/pods", document)


class TestUpAndDown:
    def test_a_second_up_starts_nothing_and_changes_no_process(self, small: Fleet, small_folder: Path) -> None:
        before = {name: process.pid for name, process in small.processes.items()}
        again = Fleet.up(small_folder, SPEC)
        assert {name: process.pid for name, process in again.processes.items()} == before

    def test_up_brings_back_a_crashed_process_which_status_showed_with_the_end_of_its_log(
        self, small: Fleet, small_folder: Path
    ) -> None:
        scheduler = small.processes["member1/kube-scheduler"]
        os.kill(scheduler.pid, signal.SIGKILL)  # not by the fleet's verb: a crash
        wait_for("the scheduler is gone", lambda: not scheduler.is_running)
        with pytest.raises(FleetError, match=r"(?s)member1/kube-scheduler.*end of .*kube-scheduler.log"):
            small.check()
        Fleet.up(small_folder, SPEC)
        again = Fleet.attach(small_folder)
        again.check()
        assert again.processes["member1/kube-scheduler"].is_running

    def test_a_process_killed_by_the_verb_is_no_crash(self, small: Fleet) -> None:
        small.processes["member1/kwok"].kill()
        small.check()

    def test_up_refuses_other_clusters_while_this_fleet_runs(self, small: Fleet, small_folder: Path) -> None:
        other = FleetSpec(members=(*SPEC.members, MemberSpec(name="member2")), without=SPEC.without)
        with pytest.raises(FleetError, match="another make"):
            Fleet.up(small_folder, other)

    def test_down_ends_all_that_it_started_and_nothing_else(self, tmp_path: Path) -> None:
        bystander = subprocess.Popen(["sleep", "600"])
        try:
            bare = FleetSpec(members=(MemberSpec(name="m", operator="none"),), without=SPEC.without, audit=False)
            fleet = Fleet.up(tmp_path / "fleet", bare)
            pids = [process.pid for process in fleet.processes.values()]
            assert all(Path(f"/proc/{pid}").exists() for pid in pids)
            fleet.hub.kubectl("create", "configmap", "kept")
            down(fleet.folder, print, keep=True)
            assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
            fleet = Fleet.up(fleet.folder, bare)  # a kept folder is continued
            pids = [process.pid for process in fleet.processes.values()]
            fleet.hub.kubectl("get", "configmap", "kept")
            down(fleet.folder, print)
            assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
            assert not fleet.folder.exists()
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()

    def test_down_leaves_a_folder_alone_that_holds_no_fleet(self, tmp_path: Path) -> None:
        (tmp_path / "precious").write_text("x")
        with pytest.raises(FleetError, match="left alone"):
            down(tmp_path, print)
        assert (tmp_path / "precious").exists()


class TestCommandLine:
    """`python -m hack.fleet`, on the fleet that is up."""

    def test_status_lists_every_process_and_fails_when_one_has_crashed(
        self, small: Fleet, small_folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["--dir", str(small_folder), "status"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[:2] for line in lines] == [[name, "running"] for name in small.processes]
        os.kill(small.processes["member1/kwok"].pid, signal.SIGKILL)
        wait_for("kwok is gone", lambda: not small.processes["member1/kwok"].is_running)
        assert main(["--dir", str(small_folder), "status"]) == 1
        assert "kwok.log" in capsys.readouterr().out

    def test_verbs_work_on_processes_links_and_nodes(
        self, member: Cluster, small: Fleet, small_folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fleet(*arguments: str) -> int:
            return main(["--dir", str(small_folder), *arguments])

        scheduler = small.processes["member1/kube-scheduler"]
        before = scheduler.pid
        assert fleet("stop", scheduler.name) == 0
        assert fleet("cont", scheduler.name) == 0
        assert fleet("restart", scheduler.name) == 0
        assert scheduler.pid != before
        assert fleet("kill", scheduler.name) == 0
        assert not scheduler.is_running
        assert fleet("start", scheduler.name) == 0
        assert fleet("cut", scheduler.name, "--to", "member1") == 0
        assert fleet("heal") == 0
        assert (
            fleet("nodes", "add", "member1", "--count", "2", "--cpu", "1", "--label", "a=b", "--prefix", "extra") == 0
        )
        assert "extra-1" in member.node_names()
        for name in ("extra-0", "extra-1"):
            member.delete_node(name)
        capsys.readouterr()
        assert fleet("kubeconfig", "member1") == 0
        assert capsys.readouterr().out.strip() == str(member.kubeconfig)

    def test_what_does_not_exist_is_answered_with_what_does(
        self, small: Fleet, small_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert small.folder == small_folder
        assert main(["--dir", str(small_folder), "kill", "member9/etcd"]) == 1
        assert "member1/etcd" in capsys.readouterr().err
        assert main(["--dir", str(small_folder), "kubeconfig", "member9"]) == 1
        assert "hub, member1" in capsys.readouterr().err
        assert main(["--dir", str(tmp_path), "status"]) == 1
        assert "up` makes one" in capsys.readouterr().err


class TestControlPlane:
    def test_what_was_acknowledged_survives_kill_9_of_etcd_and_api_server(self, member: Cluster, small: Fleet) -> None:
        member.kubectl("create", "configmap", "kept")
        for name in ("member1/kube-apiserver", "member1/etcd"):
            small.processes[name].kill()
        small.restore()
        assert member.get("/api/v1/namespaces/default/configmaps/kept")["metadata"]["name"] == "kept"

    def test_a_deleted_namespace_goes_with_its_pods(self, member: Cluster) -> None:
        member.kubectl("create", "namespace", "gone")
        account = "/api/v1/namespaces/gone/serviceaccounts"
        wait_for("the default account", lambda: member.get(account)["items"])
        with contextlib.closing(member.rest()) as rest:
            rest.post("/api/v1/namespaces/gone/pods", pod("p"))
        member.kubectl("delete", "namespace", "gone", "--timeout=30s")

    def test_a_resource_quota_is_enforced(self, member: Cluster) -> None:
        member.kubectl("create", "quota", "one", "--hard=pods=1")
        try:
            used = "/api/v1/namespaces/default/resourcequotas/one"
            wait_for("the quota is counted", lambda: member.get(used).get("status", {}).get("used"))
            create_pod(member, pod("first"))
            with pytest.raises(Exception, match="exceeded quota"):
                create_pod(member, pod("second"))
        finally:
            member.kubectl("delete", "quota", "one")

    def test_each_program_has_its_own_identity_and_only_its_rights(self, member: Cluster) -> None:
        for identity, allowed, denied in (
            (pki.KWOK, "/api/v1/nodes", "/api/v1/secrets"),
            (pki.SCHEDULER, "/api/v1/pods", "/api/v1/secrets"),
            (pki.OPERATOR, "/apis/kubeflow.org/v1/pytorchjobs", "/api/v1/nodes"),
            (pki.EXTENDER, "/api/v1/nodes", "/api/v1/secrets"),
        ):
            with contextlib.closing(Rest(member.kubeconfig_of(identity))) as rest:
                rest.get(allowed)
                with pytest.raises(Exception, match="403"):
                    rest.get(denied)


class TestNodes:
    def test_nodes_come_with_the_asked_resources_labels_and_taints_and_go_again(self, member: Cluster) -> None:
        shape = NodeShape(count=2, cpu="4", memory="1Gi", gpus=1, labels={"zone": "a"}, taints=("gpu=yes:NoSchedule",))
        before = member.node_names()
        made = member.add_nodes(shape)
        assert member.node_names() == sorted([*before, *made])
        node = member.get(f"/api/v1/nodes/{made[0]}")
        assert node["metadata"]["labels"]["zone"] == "a"
        assert node["spec"]["taints"] == [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
        asked = {"cpu": "4", "memory": "1Gi", "nvidia.com/gpu": "1"}
        assert {k: node["status"]["allocatable"][k] for k in asked} == asked
        assert member.set_nodes(NodeShape(count=2)) == ["member1-0", "member1-1"]
        assert member.node_names() == ["member1-0", "member1-1"]

    def test_pods_run_succeed_and_fail_as_their_annotations_say(self, member: Cluster) -> None:
        create_pod(member, pod("runs"))
        create_pod(member, pod("fails", **{"sim_fail-after": "100ms"}))
        create_pod(member, pod("ends", **{"sim_run-for": "100ms"}))
        wait_for("ends succeeds", lambda: phase(member, "ends") == "Succeeded")
        wait_for("fails fails", lambda: phase(member, "fails") == "Failed")
        assert phase(member, "runs") == "Running"


class TestFaults:
    def test_a_stopped_api_server_hangs_and_answers_again_when_continued(self, member: Cluster, small: Fleet) -> None:
        small.processes["member1/kube-apiserver"].stop()
        with contextlib.closing(Rest(member.kubeconfig, timeout=0.5)) as rest, pytest.raises(TimeoutError):
            rest.get("/version")
        small.processes["member1/kube-apiserver"].cont()
        member.get("/version")

    @pytest.mark.parametrize("fault", ["cut", "hang"])
    def test_a_scheduler_without_its_link_binds_nothing_until_it_is_healed(
        self, member: Cluster, small: Fleet, fault: str
    ) -> None:
        getattr(small, fault)("member1/kube-scheduler", "member1")
        create_pod(member, pod("waits"))
        with contextlib.closing(Rest(member.kubeconfig_of(pki.SCHEDULER), timeout=1)) as rest, pytest.raises(OSError):
            rest.get("/version")
        assert phase(member, "waits") == "Pending"
        small.heal("member1/kube-scheduler")
        wait_for("the pod runs", lambda: phase(member, "waits") == "Running", timeout=60)

    def test_an_unknown_link_is_answered_with_those_there_are(self, small: Fleet) -> None:
        with pytest.raises(FleetError, match="member1/kube-scheduler --to member1"):
            small.cut("member1/kwok")


class TestTrainingOperator:
    def test_a_job_is_created_runs_and_succeeds_under_the_real_operator(self, member: Cluster) -> None:
        mark = member.audit_mark()
        member.apply(job("seed"))
        path = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/seed"

        def conditions() -> list[str]:
            return [c["type"] for c in member.get(path).get("status", {}).get("conditions", [])]

        wait_for("the job succeeds", lambda: conditions()[-1:] == ["Succeeded"])
        assert conditions() == ["Created", "Running", "Succeeded"]

        # Master and two Workers: three pods, each made by the operator and bound by the stock scheduler once.
        writes = [e for e in member.audit_events(mark) if e.namespace == "default" and e.code < 300]
        pods = {"seed-master-0", "seed-worker-0", "seed-worker-1"}
        made = [e for e in writes if e.target == "pods" and e.verb == "create"]
        assert {e.user for e in made} == {"training-operator"}
        bound = [e for e in writes if e.target == "pods/binding"]
        assert {e.user for e in bound} == {"system:kube-scheduler"}
        assert sorted(e.name for e in bound) == sorted(pods)

    def test_its_webhook_refuses_an_unknown_role(self, member: Cluster) -> None:
        with pytest.raises(FleetError, match='Unsupported value: "Chief"'):
            member.apply(job("bad", master="Chief"))

    def test_a_deleted_job_takes_its_pods_with_it(self, member: Cluster) -> None:
        member.apply(job("short"))
        pods = "/api/v1/namespaces/default/pods"
        wait_for("its three pods", lambda: len(member.get(pods)["items"]) == 3)
        member.kubectl("delete", "pytorchjob", "short")
        wait_for("no pods", lambda: not member.get(pods)["items"])

    def test_a_member_can_lose_its_operator_and_get_it_back(self, member: Cluster, small: Fleet) -> None:
        small.set_operator("member1", "none")
        member.apply(job("waits"))  # no webhook in the way either
        small.set_operator("member1", "real")
        wait_for("its pods", lambda: len(member.get("/api/v1/namespaces/default/pods")["items"]) == 3)


class TestFixtures:
    """The whole fleet as other tests get it."""

    def test_a_namespace_is_ready_for_pods_in_every_cluster(self, fleet: Fleet, namespace: str) -> None:
        for cluster in fleet.clusters.values():
            with contextlib.closing(cluster.rest()) as rest:
                rest.post(f"/api/v1/namespaces/{namespace}/pods", pod("p"))

    def test_members_have_exactly_the_nodes_a_test_asks_for(
        self, fleet: Fleet, member1: Cluster, member2: Cluster, member_nodes: SetNodes
    ) -> None:
        before = member2.node_names()
        made = member_nodes(member1=[NodeShape(count=1, prefix="big", cpu="64"), NodeShape(count=2, cpu="1")])
        assert made == {"member1": ["big-0", "member1-0", "member1-1"]}
        assert member1.node_names() == ["big-0", "member1-0", "member1-1"]
        assert member2.node_names() == before
        fleet.check()

    async def test_the_products_own_client_works_for_each_identity(self, member1: Cluster) -> None:
        async with member1.api(pki.EXTENDER) as api:
            assert b'"NodeList"' in await api.list(NODES)
