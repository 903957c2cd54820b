"""Bad input: a clear word at the place the user looks, and everybody else goes on."""

import base64
import contextlib

import pytest

from hack.fleet.fleet import Cluster, Fleet, wait_for
from tests.fleet.stories import (
    GENEROUS,
    Json,
    bound,
    condition,
    events_about,
    hub_job,
    policy,
    pytorch_job,
    read,
    resource_binding,
)


def with_unknown_role(job: Json) -> None:
    roles = job["spec"]["pytorchReplicaSpecs"]
    roles["Chief"] = roles["Worker"]


def with_negative_replicas(job: Json) -> None:
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = -2


def with_a_name_too_long(job: Json) -> None:
    job["metadata"]["name"] = "a" * 60


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (with_unknown_role, ["Chief", "Master", "Worker"]),
        (with_negative_replicas, ["Worker", "replicas", "-2"]),
        (with_a_name_too_long, ["name"]),
    ],
    ids=["unknown-role", "negative-replicas", "name-too-long"],
)
def test_a_job_that_cannot_run_says_so(
    fleet: Fleet, hub: Cluster, namespace: str, spoil: object, words: list[str]
) -> None:
    job = pytorch_job(namespace, "bad")
    spoil(job)  # type: ignore[operator]
    name = job["metadata"]["name"]
    hub.apply(policy(namespace))
    refused = hub.kubectl("apply", "-f", "-", stdin=as_yaml(job), check=False)
    if refused.returncode != 0:  # the hub's CRD is the earliest place to say it
        assert all(word in refused.stderr for word in words), refused.stderr
    else:
        message = wait_for(
            "the job tells what is wrong with it",
            lambda: next((e["message"] for e in events_about(hub, namespace, name) if e["type"] == "Warning"), None),
            GENEROUS,
        )
        assert all(word in message for word in words), message
        failed = wait_for(
            "a condition on the job or its binding",
            lambda: (
                condition(resource_binding(hub, namespace, name), "Valid")
                or condition(hub_job(hub, namespace, name), "Failed")
            ),
        )
        assert all(word in failed["message"] for word in words), failed

    hub.apply(pytorch_job(namespace, "good", workers=1))
    wait_landed_somewhere(fleet, namespace, "good", 2)


def test_a_policy_that_matches_nothing_says_so(fleet: Fleet, hub: Cluster, namespace: str) -> None:
    selectors = [
        {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "no-such-job"},
        {"apiVersion": "kubeflow.org/v1", "kind": "MPIJob"},
    ]
    hub.apply(pytorch_job(namespace, "another"), policy(namespace, name="idle", resourceSelectors=selectors))
    path = f"/apis/policy.one.alibabacloud.com/v1alpha1/namespaces/{namespace}/propagationpolicies/idle"

    def unmatched() -> Json | None:
        found = condition(read(hub, path), "Matched")
        return found if "no-such-job" in found.get("message", "") else None

    matched = wait_for("a condition on the policy", unmatched, GENEROUS)
    assert matched["status"] == "False"
    assert "MPIJob" in matched["message"]

    hub.apply(pytorch_job(namespace, "no-such-job", workers=1))
    wait_for("it matches now", lambda: condition(read(hub, path), "Matched")["status"] == "True", GENEROUS)


def test_an_unreachable_member_is_not_ready_and_holds_up_nobody(fleet: Fleet, hub: Cluster, namespace: str) -> None:
    with added_member(hub, "nobody-home", kubeconfig(server="https://127.0.0.1:1")):
        assert (
            "nobody-home" in not_ready(hub, "nobody-home")["message"]
            or "127.0.0.1:1" in not_ready(hub, "nobody-home")["message"]
        )
        hub.apply(policy(namespace), pytorch_job(namespace, "train", workers=1))
        wait_landed_somewhere(fleet, namespace, "train", 2)


def test_a_kubeconfig_with_an_exec_plugin_is_refused(fleet: Fleet, hub: Cluster, namespace: str) -> None:
    config = kubeconfig(server="https://127.0.0.1:6443")
    config["users"][0]["user"] = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/false"}}
    with added_member(hub, "runs-programs", config):
        ready = not_ready(hub, "runs-programs")
        assert "exec" in ready["message"]
        hub.apply(policy(namespace), pytorch_job(namespace, "train", workers=1))
        wait_landed_somewhere(fleet, namespace, "train", 2)


def wait_landed_somewhere(fleet: Fleet, namespace: str, job: str, count: int) -> None:
    wait_for(
        f"{job} landed whole in one member",
        lambda: any(len(bound(m, namespace, f"{job}-")) == count for m in fleet.members.values()),
        GENEROUS,
    )


def not_ready(hub: Cluster, name: str) -> Json:
    path = f"/apis/muster.dev/v1alpha1/memberclusters/{name}"

    def found() -> Json | None:
        ready = condition(read(hub, path), "Ready")
        return ready if ready.get("status") == "False" and ready.get("message") else None

    ready: Json = wait_for(f"{name} not ready, with a reason", found, GENEROUS)
    return ready


def kubeconfig(server: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "m",
        "clusters": [{"name": "m", "cluster": {"server": server}}],
        "users": [{"name": "m", "user": {"token": "a-token"}}],
        "contexts": [{"name": "m", "context": {"cluster": "m", "user": "m"}}],
    }


@contextlib.contextmanager
def added_member(hub: Cluster, name: str, config: Json):
    """A further MemberCluster with this kubeconfig, for the length of a block."""
    encoded = base64.b64encode(as_yaml(config).encode()).decode()
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{name}-kubeconfig", "namespace": "muster-system"},
        "data": {"kubeconfig": encoded},
    }
    member = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "MemberCluster",
        "metadata": {"name": name},
        "spec": {"kubeconfigSecret": {"name": f"{name}-kubeconfig"}},
    }
    hub.apply(secret, member)
    try:
        yield
    finally:
        hub.kubectl("delete", "membercluster", name)
        hub.kubectl("delete", "secret", f"{name}-kubeconfig", "-n", "muster-system")


def as_yaml(body: Json) -> str:
    import yaml  # noqa: PLC0415

    return yaml.safe_dump(body)
