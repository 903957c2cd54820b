"""`kubectl amc` against real API servers: the plugin as a user runs it, with the user's own rights.

Objects are made in the members directly, so that neither dispatcher nor scheduler matters here.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.fleet.fleet import Cluster, Fleet, wait_for

Json = dict[str, Any]
Amc = Callable[..., "subprocess.CompletedProcess[str]"]

BIN = Path(sys.executable).parent
"""Where the project's programs are installed, kubectl-amc among them."""


def environment(hub: Cluster, **more: str) -> dict[str, str]:
    return os.environ | {"KUBECONFIG": str(hub.kubeconfig), "PATH": f"{BIN}:{os.environ['PATH']}"} | more


@pytest.fixture
def amc(hub: Cluster) -> Amc:
    def run(*arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
        command = [str(BIN / "kubectl-amc"), *arguments]
        env = environment(hub, **more)
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)

    return run


def pod(name: str, *, managed: bool) -> Json:
    """Nobody schedules it: it stays Pending."""
    labels = {"muster.dev/managed": "true"} if managed else {}
    spec = {"schedulerName": "nobody", "containers": [{"name": "pytorch", "image": "x"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def job(name: str) -> Json:
    """Suspended: no operator makes pods for it."""
    template = {"spec": {"containers": [{"name": "pytorch", "image": "x"}]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "labels": {"muster.dev/managed": "true"}},
        "spec": {
            "runPolicy": {"suspend": True},
            "pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}},
        },
    }


def make(cluster: Cluster, namespace: str, *documents: Json) -> None:
    for document in documents:
        cluster.kubectl("-n", namespace, "create", "-f", "-", stdin=json.dumps(document))


def cells(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


@pytest.fixture
def two_pods(member1: Cluster, member2: Cluster, namespace: str) -> str:
    """Pod a (ours) in member1, b (not ours) in member2; the namespace."""
    make(member1, namespace, pod("a", managed=True))
    make(member2, namespace, pod("b", managed=False))
    return namespace


# --- tables


def test_kubectl_finds_the_plugin(hub: Cluster, two_pods: str):
    command = ["kubectl", "amc", "get", "pod", "-M", "-n", two_pods]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(hub), timeout=60, check=True)

    assert [row[:4] for row in cells(done.stdout)] == [
        ["NAME", "CLUSTER", "READY", "STATUS"],
        ["a", "member1", "0/1", "Pending"],
        ["b", "member2", "0/1", "Pending"],
    ]
    assert cells(done.stdout)[0] == ["NAME", "CLUSTER", "READY", "STATUS", "RESTARTS", "AGE"]


def test_adoption_of_pods_is_for_wide(amc: Amc, two_pods: str):
    rows = cells(amc("get", "po", "-M", "-n", two_pods, "-o", "wide").stdout)

    assert [(row[0], row[-1]) for row in rows] == [("NAME", "ADOPTION"), ("a", "Y"), ("b", "N")]


def test_jobs_print_their_own_columns(amc: Amc, member2: Cluster, namespace: str):
    make(member2, namespace, job("j"))

    rows = cells(amc("get", "pytorchjob", "-M", "-n", namespace).stdout)

    assert rows[0] == ["NAME", "CLUSTER", "STATE", "AGE", "ADOPTION"]
    assert (rows[1][0], rows[1][1], rows[1][-1]) == ("j", "member2", "Y")


def test_one_member_and_its_object_as_it_is(amc: Amc, member2: Cluster, namespace: str):
    make(member2, namespace, job("j"))

    done = amc("get", "pytorchjob", "j", "-m", "member2", "-n", namespace, "-oyaml")

    path = f"/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs/j"
    found, shown = member2.get(path), yaml.safe_load(done.stdout)
    for document in (found, shown):  # an operator may write status between the two reads
        document.pop("status", None)
        document["metadata"].pop("managedFields", None)
        document["metadata"].pop("resourceVersion", None)
    assert shown == found


def test_all_namespaces_labels_and_selectors(amc: Amc, two_pods: str):
    everywhere = cells(amc("get", "pods", "-M", "-A", "-l", "muster.dev/managed=true", "--show-labels").stdout)
    by_field = amc("get", "pods", "-M", "-n", two_pods, "--field-selector", "metadata.name=b", "-o", "name").stdout

    assert everywhere[0][0] == "NAMESPACE"
    assert [two_pods, "a", "member1"] in [row[:3] for row in everywhere]
    assert all("muster.dev/managed=true" in row[-1] for row in everywhere[1:])
    assert by_field == "pod/b\n"


def test_several_objects_are_one_list(amc: Amc, two_pods: str):
    printed = json.loads(amc("get", "pods", "-M", "-n", two_pods, "-o", "json").stdout)

    assert printed["kind"] == "List"
    assert [item["metadata"]["annotations"]["muster.dev/cluster"] for item in printed["items"]] == [
        "member1",
        "member2",
    ]


# --- what is not there


def test_what_is_not_there(amc: Amc, namespace: str):
    nothing = amc("get", "pods", "-M", "-n", namespace)
    name = amc("get", "pod", "nope", "-m", "member1", "-n", namespace)
    kind = amc("get", "nonsense", "-M")
    member = amc("get", "pods", "-m", "nowhere")

    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (
        0,
        "",
        f"No resources found in {namespace} namespace.\n",
    )
    assert (name.returncode, name.stderr) == (1, 'cluster(member1): pods "nope" not found\n')
    assert (kind.returncode, kind.stderr) == (1, 'error: the server doesn\'t have a resource type "nonsense"\n')
    assert (member.returncode, member.stderr.split(":")[1]) == (1, " the hub has no member cluster 'nowhere'")


@pytest.mark.parametrize("fault", ["cut", "hang"])
def test_a_member_that_cannot_be_reached_harms_only_itself(fleet: Fleet, amc: Amc, two_pods: str, fault: str):
    # The members' kubeconfigs lead over the dispatcher's links.
    (fleet.cut if fault == "cut" else fleet.hang)("hub/dispatcher", "member2")
    began = time.monotonic()

    done = amc("get", "pods", "-M", "-n", two_pods, "--request-timeout=2s")

    assert done.returncode == 1
    assert [row[:2] for row in cells(done.stdout)] == [["NAME", "CLUSTER"], ["a", "member1"]]
    assert done.stderr.startswith("cluster(member2): ")
    assert time.monotonic() - began < 10


# --- rights and connection


def test_it_reads_with_the_users_own_rights(hub: Cluster, amc: Amc, two_pods: str):
    user = f"{two_pods}-jane"
    get = ("get", "pods", "-M", "-n", two_pods, "--as", user)

    refused = amc(*get)
    hub.kubectl("create", "clusterrolebinding", user, "--clusterrole=muster-viewer-members", f"--user={user}")
    try:
        without_secrets = amc(*get)
        role = ("--role=muster-viewer-kubeconfigs", f"--user={user}", "-n", "muster-system")
        hub.kubectl("create", "rolebinding", user, *role)
        allowed = wait_for("the right to read Secrets", lambda: (done := amc(*get)).returncode == 0 and done)
    finally:
        hub.kubectl("delete", "clusterrolebinding", user)
        hub.kubectl("delete", "rolebinding", user, "-n", "muster-system", "--ignore-not-found")

    assert refused.returncode == 1
    assert "Forbidden" in refused.stderr
    assert f'"{user}" cannot list resource "memberclusters"' in refused.stderr
    assert without_secrets.returncode == 1
    assert without_secrets.stderr.count('cannot get resource "secrets"') == 2
    assert [row[0] for row in cells(allowed.stdout)] == ["NAME", "a", "b"]


def test_kubeconfigs_are_merged_and_flags_go_first(hub: Cluster, amc: Amc, two_pods: str, tmp_path: Path):
    config = yaml.safe_load(hub.kubeconfig.read_text())
    context = {"name": "mine", "context": {**config["contexts"][0]["context"], "namespace": two_pods}}
    (tmp_path / "context").write_text(yaml.safe_dump({"contexts": [context]}))
    files = f"{tmp_path / 'context'}:{tmp_path / 'missing'}:{hub.kubeconfig}"

    done = amc("get", "pods", "-M", "--context=mine", "--no-headers", KUBECONFIG=files)
    other = amc("get", "pods", "-M", "--context=mine", "-n", "kube-node-lease", KUBECONFIG=files)

    assert [row[0] for row in cells(done.stdout)] == ["a", "b"]
    assert other.stderr == "No resources found in kube-node-lease namespace.\n"


# --- watch


@pytest.fixture
def watching(hub: Cluster, two_pods: str, tmp_path: Path) -> Iterator[Path]:
    """A running `kubectl amc get pods -M -w`; the file that it writes to."""
    output = tmp_path / "watch"
    command = [str(BIN / "kubectl-amc"), "get", "pods", "-M", "-w", "-n", two_pods]
    with output.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment(hub))
    try:
        yield output
    finally:
        process.terminate()
        process.wait(10)


def test_a_watch_joins_the_streams_of_all_members(watching: Path, member1: Cluster, member2: Cluster, two_pods: str):
    def seen(name: str, cluster: str) -> bool:
        return [name, cluster] in [row[:2] for row in cells(watching.read_text())]

    wait_for("what is there", lambda: seen("a", "member1") and seen("b", "member2"))
    make(member2, two_pods, pod("c", managed=True))
    wait_for("a new pod", lambda: seen("c", "member2"))
    member1.kubectl("-n", two_pods, "delete", "pod", "a", "--grace-period=0", "--force")
    wait_for("the end of a pod", lambda: sum(row[0] == "a" for row in cells(watching.read_text())) > 1)

    assert [row[0] for row in cells(watching.read_text())].count("NAME") == 1
