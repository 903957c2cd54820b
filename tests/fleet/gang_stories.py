"""What the tests of gangs on a real kube-scheduler have in common: the extender asked directly, its metrics, Bindings
that are denied for a while, reservations as the hub would post them."""

import contextlib
import functools
import itertools
import json
import ssl
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from hack.fleet import pki
from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.rest import RestError
from hack.fleet.spec import NodeShape
from tests.fleet.stories import (
    GENEROUS,
    Json,
    bindings_posted,
    events_about,
    gang_pod,
    plain_pod,
    pod_group,
    pods,
    posting,
    read,
)

POD_GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{}/podgroups"
RESERVATIONS = "/apis/muster.dev/v1alpha1/namespaces/muster-system/gangreservations"
HUB_LEASE = "/apis/coordination.k8s.io/v1/namespaces/muster-system/leases/muster-hub"
POLICIES = "/apis/admissionregistration.k8s.io/v1/{}"
TEST_HUB = "hub-of-the-tests"
"""Not the fleet's hub: the dispatcher never touches what carries another hub's id."""


# --- asking the extender -----------------------------------------------------------------------------------------


def ask(member: Cluster, verb: str, body: Json) -> Json:
    """One call as kube-scheduler makes it: mutual TLS, PascalCase JSON."""
    answer: Json = json.loads(_post(member, verb, json.dumps(body).encode()))
    return answer


def _post(member: Cluster, verb: str, body: bytes) -> bytes:
    folder = member.extender_pki
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.check_hostname = False  # the certificate is for pki.EXTENDER_SERVER_NAME, reached by address here
    context.load_cert_chain(str(folder / "client.crt"), str(folder / "client.key"))
    request = urllib.request.Request(
        f"https://127.0.0.1:{member.port('extender')}/{verb}",
        data=body,
        headers={"Content-Type": "application/json", "Host": pki.EXTENDER_SERVER_NAME},
    )
    with urllib.request.urlopen(request, timeout=90, context=context) as reply:
        found: bytes = reply.read()
    return found


def ask_filter(member: Cluster, pod: Json, nodes: list[str]) -> Json:
    return ask(member, "filter", {"Pod": pod, "Nodes": None, "NodeNames": nodes})


def ask_bind(member: Cluster, pod: Json, node: str) -> str:
    """The error of the answer, "" with success."""
    meta = pod["metadata"]
    body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
    return str(ask(member, "bind", body)["Error"])


Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def metrics(member: Cluster) -> Series:
    """Every sample of the extender's /metrics by name and labels."""
    url = f"http://127.0.0.1:{member.port('extender metrics')}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def metric(member: Cluster, name: str, **labels: str) -> float:
    """The sum over all samples of this name with these labels."""
    found = metrics(member)
    return sum(value for (each, has), value in found.items() if each == name and labels.items() <= dict(has).items())


def filter_calls(member: Cluster) -> int:
    return int(metric(member, "muster_extender_requests_total", verb="filter"))


def wait_held(member: Cluster, count: int, timeout: float = GENEROUS) -> None:
    """Exactly so many bind calls are held open."""
    wait_for(f"{count} held bind calls", lambda: metric(member, "muster_held_bind_calls") == count, timeout)


def wait_state(member: Cluster, state: str, count: int = 1, timeout: float = GENEROUS) -> None:
    """So many gangs of the member are in this state."""
    wait_for(f"{count} gangs {state}", lambda: metric(member, "muster_gangs", state=state) == count, timeout)


# --- nodes, pods and gangs ---------------------------------------------------------------------------------------


def four_cpus(count: int, **shape: Any) -> NodeShape:
    """Nodes that hold one pod of 3 CPUs each."""
    return NodeShape(count=count, cpu="4", gpus=0, **shape)


def post_gang(
    cluster: Cluster, namespace: str, name: str, size: int, *, minimum: int | None = None, **pod: Any
) -> None:
    """A PodGroup and its pods, quickly one after another. `pod`: as gang_pod takes it."""
    with posting(cluster) as post:
        post(pod_group(namespace, name, size if minimum is None else minimum))
        for index in range(size):
            post(gang_pod(namespace, name, index, **pod))


def nodes_of(cluster: Cluster, namespace: str, prefix: str = "") -> dict[str, str]:
    """Name -> node of the pods that are bound."""
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in pods(cluster, namespace)
        if pod["spec"].get("nodeName") and pod["metadata"]["name"].startswith(prefix)
    }


def pod_condition(cluster: Cluster, namespace: str, name: str) -> Json:
    """PodScheduled of a pod; {} when it has none or is gone."""
    pod = read(cluster, f"/api/v1/namespaces/{namespace}/pods/{name}") or {}
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == "PodScheduled"), {})


def wait_refused(cluster: Cluster, namespace: str, *names: str, timeout: float = GENEROUS) -> None:
    """kube-scheduler has looked at each of these pods and found no place."""
    left = list(names)

    def all_refused() -> bool:
        while left and pod_condition(cluster, namespace, left[-1]).get("status") == "False":
            left.pop()
        return not left

    wait_for(f"refused: {', '.join(names)}", all_refused, timeout)


def never_bound(cluster: Cluster, namespace: str, gang: str, *names: str) -> None:
    """These pods of the gang have been tried; nothing of it was bound at any time."""
    wait_refused(cluster, namespace, *names)
    assert [e.name for e in bindings_posted(cluster, namespace) if e.name.startswith(f"{gang}-")] == []


def refused_bindings(member: Cluster, namespace: str, since: int = 0) -> list[str]:
    """Names of pods whose Bindings the API server refused, once for each time."""
    return [
        e.name
        for e in member.audit_events(since)
        if e.namespace == namespace and e.target == "pods/binding" and e.code >= 400 and "dryRun" not in e.uri
    ]


def wait_event(cluster: Cluster, namespace: str, name: str, reason: str, timeout: float = GENEROUS) -> str:
    """The message of an event with this reason about the object of this name."""

    def found() -> str:
        return next((e["message"] for e in events_about(cluster, namespace, name) if e["reason"] == reason), "")

    message: str = wait_for(f"an event {reason} about {name}", found, timeout)
    return message


def group_status(cluster: Cluster, namespace: str, name: str) -> Json:
    found = read(cluster, f"{POD_GROUPS.format(namespace)}/{name}") or {}
    return dict(found.get("status") or {})


def delete(cluster: Cluster, path: str, *, now: bool = True) -> None:
    with contextlib.closing(cluster.rest()) as rest:
        rest.delete(path, grace_seconds=0 if now else None)


def delete_pod(cluster: Cluster, namespace: str, name: str) -> None:
    """At once, as its kubelet would confirm it."""
    delete(cluster, f"/api/v1/namespaces/{namespace}/pods/{name}")


def patch(cluster: Cluster, path: str, body: Json) -> Json:
    with contextlib.closing(cluster.rest()) as rest:
        return rest.merge_patch(path, body)


def wait_seconds(seconds: float, what: str) -> None:
    """Time that has to pass for the story, as in pods that come one per second."""
    until = time.monotonic() + seconds
    wait_for(what, lambda: time.monotonic() >= until, seconds + 5, interval=0.02)


def never(what: str, condition: Callable[[], Any], seconds: float) -> None:
    """Looks again and again for `seconds`: the condition must stay false."""
    until = time.monotonic() + seconds

    def over() -> bool:
        found = condition()
        assert not found, f"{what}: {found}"
        return time.monotonic() >= until

    wait_for(what, over, seconds + 30)


@contextlib.contextmanager
def stream(cluster: Cluster, make: Callable[[int], Json], every: float) -> Iterator[list[str]]:
    """Creates make(0), make(1), ... with `every` seconds between them for the length of the block; yields their names,
    a list that grows."""
    names: list[str] = []
    ended = threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        try:
            with posting(cluster) as post:
                began = time.monotonic()
                for number in itertools.count():
                    body = make(number)
                    post(body)
                    names.append(body["metadata"]["name"])
                    if ended.wait(max(0.0, began + (number + 1) * every - time.monotonic())):
                        return
        except Exception as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield names
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]


# --- admission -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def denied_bindings(member: Cluster, namespace: str, *names: str) -> Iterator[Callable[[], None]]:
    """The API server refuses the Bindings of these pods (a ValidatingAdmissionPolicy); yields what lifts it.

    The policy is in force when the block begins.
    """
    policy = f"deny-{uuid.uuid4().hex[:8]}"
    listed = ", ".join(f"'{name}'" for name in names)
    documents = {
        "validatingadmissionpolicies": {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": policy},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {
                    "resourceRules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "operations": ["CREATE"],
                            "resources": ["pods/binding"],
                        }
                    ]
                },
                "validations": [
                    {
                        "expression": f"request.namespace != '{namespace}' || !(object.metadata.name in [{listed}])",
                        "message": "denied by the test",
                    }
                ],
            },
        },
        "validatingadmissionpolicybindings": {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": policy},
            "spec": {"policyName": policy, "validationActions": ["Deny"]},
        },
    }
    with applied(member, documents) as lift:
        wait_for("the policy is in force", functools.partial(_denied, member, namespace, names[0]), GENEROUS)
        yield lift


def _denied(member: Cluster, namespace: str, name: str) -> bool:
    """Whether a dry Binding of the pod is refused by the policy."""
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace},
        "target": {"kind": "Node", "name": "nowhere"},
    }
    with contextlib.closing(member.rest()) as rest:
        try:
            rest.post(f"/api/v1/namespaces/{namespace}/pods/{name}/binding?dryRun=All", body)
        except RestError as error:
            return "denied by the test" in error.body
    return False


@contextlib.contextmanager
def applied(member: Cluster, documents: dict[str, Json]) -> Iterator[Callable[[], None]]:
    """Cluster-wide objects by plural for the length of the block; yields what removes them earlier."""
    paths: list[str] = []

    def remove() -> None:
        while paths:
            delete(member, paths.pop())

    try:
        with contextlib.closing(member.rest()) as rest:
            for plural, document in documents.items():
                base = f"/apis/{document['apiVersion']}/{plural}"
                rest.post(base, document)
                paths.append(f"{base}/{document['metadata']['name']}")
        yield remove
    finally:
        remove()


# --- the hub's side --------------------------------------------------------------------------------------------


def pod_template(cpu: str = "1", **spec: Any) -> Json:
    """A role's template, as the hub sends it."""
    return {"metadata": {"labels": {}}, "spec": plain_pod("", "", cpu=cpu)["spec"] | spec}


def reservation(namespace: str, job: str, roles: dict[str, tuple[int, Json]], *, epoch: int = 1, **spec: Any) -> Json:
    """As the dispatcher posts it. `roles`: name -> (count, template); all of them are needed."""
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "GangReservation",
        "metadata": {"namespace": "muster-system", "name": f"{namespace}-{job}-{epoch}"},
        "spec": {
            "hubID": TEST_HUB,
            "id": f"{namespace}-{job}",
            "epoch": epoch,
            "jobNamespace": namespace,
            "jobName": job,
            "state": "Pending",
            "roles": [
                {"name": role, "count": count, "minCount": count, "template": template}
                for role, (count, template) in roles.items()
            ],
            "minMember": sum(count for count, _ in roles.values()),
            "ttlSeconds": 60,
            "landingDeadlineSeconds": 600,
        }
        | spec,
    }


@contextlib.contextmanager
def reserved(member: Cluster, document: Json) -> Iterator[str]:
    """The reservation in the member for the length of the block; yields its name."""
    name = document["metadata"]["name"]
    with contextlib.closing(member.rest()) as rest:
        rest.post(RESERVATIONS, document)
    try:
        yield name
    finally:
        delete(member, f"{RESERVATIONS}/{name}")


def reservation_status(member: Cluster, name: str) -> Json:
    return dict((read(member, f"{RESERVATIONS}/{name}") or {}).get("status") or {})


def wait_reservation(member: Cluster, name: str, state: str, timeout: float = GENEROUS) -> Json:
    """Its status once it has this state."""

    def seen() -> Json | None:
        status = reservation_status(member, name)
        return status if status.get("state") == state else None

    try:
        found: Json = wait_for(f"{name} {state}", seen, timeout)
    except AssertionError as error:
        raise AssertionError(f"{error}: {reservation_status(member, name)}") from None
    return found


def dispatch(fleet: Fleet, member: Cluster, name: str) -> None:
    """The hub's point of no return; and the hub is alive in this member (PROTOCOL rule 12)."""
    patch(member, f"{RESERVATIONS}/{name}", {"spec": {"state": "Dispatched"}})
    if "dispatcher" in fleet.spec.without:
        _renew_hub_lease(member)


def _renew_hub_lease(member: Cluster) -> None:
    """Without a dispatcher nobody renews it: two renewals, so that the extender sees one after its first sight."""
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    spec = {"holderIdentity": TEST_HUB, "renewTime": now, "leaseDurationSeconds": 15}
    with contextlib.closing(member.rest()) as rest:
        try:
            rest.merge_patch(HUB_LEASE, {"spec": spec})
        except RestError as error:
            if error.status != 404:
                raise
            base, _, name = HUB_LEASE.rpartition("/")
            rest.post(base, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                             "metadata": {"name": name}, "spec": spec})  # fmt: skip


def hub_pod(namespace: str, job: str, role: str, index: int, *, epoch: int = 1, cpu: str = "1", **spec: Any) -> Json:
    """A pod of the hub's gang as the training operator makes it from the dispatched job."""
    pod = plain_pod(
        namespace,
        f"{job}-{role}-{index}",
        cpu=cpu,
        labels={"muster.dev/role": role, "scheduling.x-k8s.io/pod-group": job},
        **spec,
    )
    pod["metadata"]["annotations"] = {
        "muster.dev/hub-id": TEST_HUB,
        "muster.dev/id": f"{namespace}-{job}",
        "muster.dev/epoch": str(epoch),
    }
    return pod
