"""The CRDs on real API servers: served, explained, taking what they should and refusing the rest in readable words.

Nothing here is seen by dispatcher or extender: objects are only offered (`--dry-run=server`), or made in a cluster
where nobody acts on that kind.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.fleet.fleet import Cluster, Fleet

Json = dict[str, Any]

REPOSITORY = Path(__file__).parents[2]
CRDS = REPOSITORY / "manifests/crds"
HUB_KINDS = (
    "pytorchjobs.kubeflow.org",
    "propagationpolicies.policy.one.alibabacloud.com",
    "elasticquotatrees.scheduling.sigs.k8s.io",
    "queues.scheduling.x-k8s.io",
    "queueunits.scheduling.x-k8s.io",
    "resourcebindings.muster.dev",
    "memberclusters.muster.dev",
)
MEMBER_KINDS = ("gangreservations.muster.dev", "clustercapacities.muster.dev", "podgroups.scheduling.x-k8s.io")


def offered(cluster: Cluster, document: Json | str) -> tuple[Json, str]:
    """What the API server would store of it, and why it would not: one of the two."""
    text = document if isinstance(document, str) else json.dumps(document)
    done = cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=text, check=False)
    return (json.loads(done.stdout), "") if done.returncode == 0 else ({}, done.stderr)


@contextmanager
def kind_in(cluster: Cluster, crd: Path) -> Iterator[None]:
    """The kind served in a cluster in which no program knows it."""
    name = yaml.safe_load(crd.read_text())["metadata"]["name"]
    cluster.kubectl("apply", "--server-side", "-f", str(crd))
    try:
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=30s")
        yield
    finally:
        cluster.kubectl("delete", f"crd/{name}", "--timeout=30s")


def clusters_and_kinds(fleet: Fleet) -> list[tuple[Cluster, str]]:
    members = [(member, kind) for member in fleet.members.values() for kind in MEMBER_KINDS]
    return [(fleet.hub, kind) for kind in HUB_KINDS] + members


# --- served


def test_every_kind_is_established_and_its_schema_structural(fleet: Fleet):
    for cluster, kind in clusters_and_kinds(fleet):
        crd = cluster.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind}")
        conditions = {c["type"]: c["status"] for c in crd["status"]["conditions"]}

        assert (kind, conditions.get("Established")) == (kind, "True")
        assert (kind, conditions.get("NonStructuralSchema")) == (kind, None)


def test_kubectl_explain_describes_every_field_of_our_kinds(fleet: Fleet):
    for cluster, kind in clusters_and_kinds(fleet)[: len(HUB_KINDS) + len(MEMBER_KINDS)]:
        if kind == "pytorchjobs.kubeflow.org":
            continue
        shown = cluster.kubectl("explain", kind).stdout
        for part in ("spec", "status"):
            if f"  {part}\t" in shown:
                shown += cluster.kubectl("explain", f"{kind}.{part}").stdout

        assert (kind, "<no description>" in shown) == (kind, False)


def test_short_names_and_the_category_are_served(fleet: Fleet):
    names = fleet.hub.kubectl("api-resources", "--categories=muster", "-o", "name").stdout.split()

    assert sorted(names) == sorted(HUB_KINDS)
    for short in ("rb", "mcl", "pp", "qu", "eqtree"):
        fleet.hub.kubectl("get", short, "-A")


def test_columns(fleet: Fleet):
    header = fleet.hub.kubectl("get", "memberclusters").stdout.splitlines()[0]

    assert re.split(r" {2,}", header.strip()) == [
        "NAME",
        "READY",
        "NODES",
        "FREE CPU",
        "FREE MEMORY",
        "FREE GPU",
        "AGE",
    ]


# --- the walk-through's YAML


@pytest.mark.parametrize(
    "name", ["elasticquotatree", "propagationpolicy-gang", "propagationpolicy-queue", "pytorchjob"]
)
def test_the_examples_apply_unchanged_under_strict_validation(fleet: Fleet, name: str):
    path = REPOSITORY / "examples" / f"{name}.yaml"

    done = fleet.hub.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(path))

    assert done.stderr == ""


def test_the_quota_tree_is_kept_as_it_was_written(fleet: Fleet):
    document = yaml.safe_load((REPOSITORY / "examples/elasticquotatree.yaml").read_text())

    stored, refusal = offered(fleet.hub, document | {"metadata": {"name": "other", "namespace": "kube-system"}})

    assert refusal == ""
    assert stored["spec"] == document["spec"]
    assert stored["spec"]["root"]["max"]["kube-queue/max-jobs"] == 10_000_000_000


def test_a_quota_tree_may_be_deep_and_have_settings_we_do_not_know(fleet: Fleet):
    node: Json = {"name": "n9", "max": {"cpu": 1}}
    for depth in range(8, -1, -1):
        node = {"name": f"n{depth}", "children": [node], "vendor": {"setting": True}}

    stored, _ = offered(fleet.hub, tree(node))

    assert stored["spec"]["root"] == node


# --- PyTorchJob, both dialects


def test_a_job_may_have_its_policy_in_both_places(fleet: Fleet):
    policy = {
        "cleanPodPolicy": "Running",
        "ttlSecondsAfterFinished": 60,
        "activeDeadlineSeconds": 9_000_000_000,
        "backoffLimit": 3,
    }

    stored, refusal = offered(fleet.hub, job(policy | {"runPolicy": policy}))

    assert refusal == ""
    assert {key: stored["spec"][key] for key in policy} == policy
    assert {key: stored["spec"]["runPolicy"][key] for key in policy} == policy


def test_a_jobs_status_may_come_from_either_operator(fleet: Fleet, namespace: str):
    condition = {"type": "Running", "status": "True", "reason": "PyTorchJobRunning", "message": "is running."}
    times = {"lastUpdateTime": "2026-08-01T12:00:00Z", "lastTransitionTime": "2026-08-01T12:00:00Z"}
    legacy = {"conditions": [condition | times], "replicaStatuses": {"Master": {"active": 1}, "Worker": {}}}
    newer = legacy | {
        "replicaStatuses": {"Master": {"active": 1, "selector": "a=b"}},
        "startTime": times["lastUpdateTime"],
    }
    created = job({}, name="status")
    created["metadata"]["namespace"] = namespace
    fleet.hub.kubectl("create", "-f", "-", stdin=json.dumps(created))

    for status in (legacy, newer):
        patch = ("patch", "pytorchjob", "status", "-n", namespace, "--subresource=status", "--type=merge")
        done = fleet.hub.kubectl(*patch, "--dry-run=server", "-o", "json", "-p", json.dumps({"status": status}))
        assert json.loads(done.stdout)["status"] == status


# --- refusals


def job(spec: Json, name: str = "offered") -> Json:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "x"}]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}}} | spec,
    }


def tree(root: Json) -> Json:
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1beta1",
        "kind": "ElasticQuotaTree",
        "metadata": {"name": "offered", "namespace": "kube-system"},
        "spec": {"root": root},
    }


def policy(**spec: Any) -> Json:
    return {
        "apiVersion": "policy.one.alibabacloud.com/v1alpha1",
        "kind": "PropagationPolicy",
        "metadata": {"name": "offered", "namespace": "default"},
        "spec": {"resourceSelectors": [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}]} | spec,
    }


def member_cluster(name: str = "offered", **spec: Any) -> Json:
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "MemberCluster",
        "metadata": {"name": name},
        "spec": {"kubeconfigSecret": {"name": "x"}} | spec,
    }


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (job({"cleanPodsPolicy": "All"}), 'unknown field "spec.cleanPodsPolicy"'),
        (job({"pytorchReplicaSpecs": None}), "spec.pytorchReplicaSpecs: Required value"),
        (tree({"name": "root", "max": {"cpu": "many"}}), "spec.root.max.cpu"),
        (tree({"name": "root", "namespaces": "default"}), "spec.root.namespaces in body must be of type array"),
        (policy(resourceSelectors=[]), "spec.resourceSelectors in body should have at least 1 items"),
        (policy(failover={"application": {"decisionConditions": {}, "purgeMode": "Soon"}}), "Immediately"),
        (policy(placement={"replicaScheduling": {"customSchedulingType": "Herd"}}), 'supported values: "Gang"'),
        (
            policy(placement={"clusterAffinity": {}, "clusterAffinities": []}),
            "give clusterAffinity or clusterAffinities, not both",
        ),
        (policy(suspention={"scheduling": True}), 'unknown field "spec.suspention"'),
        (member_cluster(kubeconfigSecret=None), "spec.kubeconfigSecret: Required value"),
        (member_cluster("a.b"), "the name must be a DNS label"),
        (member_cluster("a" * 64), "the name must be a DNS label"),
        (member_cluster(taints=[{"key": "a", "effect": "No"}]), "NoSchedule"),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else value,
)
def test_what_is_wrong_on_the_hub_is_refused_by_name(fleet: Fleet, document: Json, message: str):
    stored, refusal = offered(fleet.hub, document)

    assert stored == {}
    assert message in refusal


def reservation(name: str = "job-a-3-7", **spec: Any) -> Json:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "pytorch", "image": "x"}]}}
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "GangReservation",
        "metadata": {"name": name, "namespace": "muster-system"},
        "spec": {
            "hubID": "another-hub",
            "id": "job-a-3",
            "epoch": 7,
            "jobNamespace": "default",
            "jobName": "a",
            "minMember": 3,
            "roles": [
                {"name": "master", "count": 1, "minCount": 1, "template": template},
                {"name": "worker", "count": 2, "minCount": 2, "template": template},
            ],
        }
        | spec,
    }


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (reservation("job-a-3-8"), "the name must be <spec.id>-<spec.epoch>"),
        (reservation("other"), "the name must be <spec.id>-<spec.epoch>"),
        (reservation(minMember=4), "minMember must not exceed the number of pods in all roles"),
        (reservation(epoch=0), "spec.epoch in body should be greater than or equal to 1"),
        (reservation(roles=[]), "spec.roles in body should have at least 1 items"),
        (reservation(state="Landed"), 'supported values: "Pending", "Dispatched"'),
        (reservation(hubId="x"), 'unknown field "spec.hubId"'),
    ],
    ids=lambda value: value["metadata"]["name"] if isinstance(value, dict) else value,
)
def test_what_is_wrong_in_a_reservation_is_refused_by_name(member1: Cluster, document: Json, message: str):
    stored, refusal = offered(member1, document)

    assert stored == {}
    assert message in refusal


def test_a_reservation_gets_its_defaults(member1: Cluster):
    stored, _ = offered(member1, reservation())

    assert {
        key: stored["spec"][key] for key in ("state", "ttlSeconds", "landingDeadlineSeconds", "renewals", "claim")
    } == {
        "state": "Pending",
        "ttlSeconds": 60,
        "landingDeadlineSeconds": 600,
        "renewals": 0,
        "claim": False,
    }


# --- changes


def test_the_life_of_a_reservation_and_what_it_rules_out(hub: Cluster):
    def change(patch: Json | list[Json]) -> str:
        kind = "json" if isinstance(patch, list) else "merge"
        command = ("-n", "muster-system", "patch", "gr", "job-a-3-7", f"--type={kind}", "-p", json.dumps(patch))
        return hub.kubectl(*command, check=False).stderr

    with kind_in(hub, CRDS / "member/muster.dev_gangreservations.yaml"):
        hub.kubectl("create", "-f", "-", stdin=json.dumps(reservation()))

        for allowed in ({"renewals": 1}, {"claim": True}, {"claim": False, "renewals": 2}, {"state": "Dispatched"}):
            assert change({"spec": allowed}) == ""
        assert change({"spec": {"renewals": 3}}) == ""  # renewals go on

        assert "renewals only rises" in change({"spec": {"renewals": 1}})
        assert "state moves from Pending to Dispatched only" in change({"spec": {"state": "Pending"}})
        for field, value in {
            "hubID": "x",
            "id": "job-b",
            "epoch": 8,
            "jobNamespace": "x",
            "jobName": "x",
            "minMember": 2,
            "ttlSeconds": 61,
            "landingDeadlineSeconds": 601,
            "preferTopologyKey": "x",
        }.items():
            assert f"{field} is fixed at creation" in change({"spec": {field: value}})
        for path, deeper in {"count": 3, "minCount": 1, "template/spec/containers/0/image": "y"}.items():
            refusal = change([{"op": "replace", "path": f"/spec/roles/1/{path}", "value": deeper}])
            assert "roles are fixed at creation" in refusal


def test_the_life_of_a_binding_and_what_it_rules_out(member1: Cluster):
    """Decisions that nothing may take back."""
    binding: Json = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "ResourceBinding",
        "metadata": {"name": "a-pytorchjob", "namespace": "default"},
        "spec": {
            "hubID": "h",
            "id": "job-a",
            "job": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "a", "uid": "u"},
        },
    }

    def change(spec: Json) -> str:
        command = ("-n", "default", "patch", "rb", "a-pytorchjob", "--type=merge", "-p", json.dumps({"spec": spec}))
        return member1.kubectl(*command, check=False).stderr

    def attempt(state: str, epoch: int, **more: str) -> Json:
        return {"attempt": {"cluster": "c1", "state": state, "epoch": epoch, **more}, "lastEpoch": epoch}

    with kind_in(member1, CRDS / "hub/muster.dev_resourcebindings.yaml"):
        member1.kubectl("create", "-f", "-", stdin=json.dumps(binding))
        result = {"state": "Succeeded", "cluster": "c1", "epoch": 2}
        for allowed in (
            attempt("Reserving", 1),
            {"attempt": None},  # refused: the next member is asked
            attempt("Reserving", 2),
            attempt("Scheduled", 2),
            attempt("Landed", 2),
            {"job": {"uid": "after-a-restore"}},
            {"result": result, **attempt("Finished", 2)},
            {"result": result | {"released": True, "message": "done"}},
            {"deleting": True},
        ):
            assert change(allowed) == ""

        assert "id is minted once" in change({"id": "job-b"})
        assert "lastEpoch never goes back" in change({"lastEpoch": 1})
        assert "lastEpoch never goes back" in change({"lastEpoch": None})
        assert "the epoch of an attempt never goes back" in change({"attempt": {"epoch": 1}})
        assert "the result of a job is final" in change({"result": None})
        assert "the result of a job is final" in change({"result": {"state": "Failed"}})
        assert "deleting is never taken back" in change({"deleting": False})
        assert 'Unsupported value: "Flying"' in change({"attempt": {"state": "Flying"}})
