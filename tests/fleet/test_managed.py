"""The managed install: the cluster's own scheduler knows nothing of gangs and promises, and takes what it likes."""

import contextlib
import functools
import random
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.pki import EXTENDER, SCHEDULER, USERS
from hack.fleet.spec import MemberSpec, NodeShape
from tests.fleet.conftest import DEFAULT_NODES, SetNodes, lone_member
from tests.fleet.replay import cpus_of, overcommits
from tests.fleet.stories import (
    GENEROUS,
    Json,
    bindings_posted,
    bound,
    delete_pods,
    gang_pod,
    plain_pod,
    pod_group,
    pods,
    posting,
    read,
)

pytestmark = pytest.mark.long

CPUS = 4
RACES = 10
SEED = 11
BROKEN = 'muster_plan_changes_total{change="broken"}'
COLLISIONS = "muster_overcommitted_by_others_total"
RESERVATIONS = "/apis/muster.dev/v1alpha1/namespaces/muster-system/gangreservations"


@pytest.fixture(scope="module")
def whole_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """In the place of the ordinary one: a member whose own scheduler has no extender."""
    member = MemberSpec("member1", operator="none", nodes=(DEFAULT_NODES,), mode="managed")
    with lone_member(tmp_path_factory.mktemp("managed"), member) as fleet:
        yield fleet


@pytest.fixture
def nodes(member1: Cluster, member_nodes: SetNodes) -> Callable[[int], list[str]]:
    """Gives the member so many nodes of CPUS, and returns their names."""
    return lambda count: member_nodes(member1=[NodeShape(count=count, cpu=str(CPUS), gpus=0)])["member1"]


@pytest.fixture
def reserve(member1: Cluster) -> Iterator[Callable[[Json], None]]:
    """Posts a reservation as the hub would; gone after the test."""
    made = []
    with contextlib.closing(member1.rest()) as rest:

        def post(body: Json) -> None:
            rest.post(RESERVATIONS, body)
            made.append(body["metadata"]["name"])

        yield post
        for name in made:
            rest.delete(f"{RESERVATIONS}/{name}")


def reservation(namespace: str, *, workers: int, cpu: str) -> Json:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    role = {"name": "worker", "count": workers, "minCount": workers, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "GangReservation",
        "metadata": {"name": f"{namespace}-1"},
        "spec": {
            "hubID": "hub",
            "id": namespace,
            "epoch": 1,
            "jobNamespace": namespace,
            "jobName": "train",
            "roles": [role],
            "minMember": workers,
        },
    }


def status(member: Cluster, namespace: str) -> Json:
    found: Json = (read(member, f"{RESERVATIONS}/{namespace}-1") or {}).get("status") or {}
    return found


def on(node: str) -> Json:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def metric(member: Cluster, name: str) -> int:
    """A series of the extender, labels included."""
    with urllib.request.urlopen(f"http://127.0.0.1:{member.port('extender metrics')}/metrics", timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return int(float(line.rpartition(" ")[2]))
    raise AssertionError(f"no series {name}")


def held(member: Cluster) -> int:
    return metric(member, "muster_held_bind_calls")


def overcommitted(member: Cluster, since: int, posted: list[Json]) -> list[str]:
    """Bindings that gave a node more than it has, of all pods of the test."""
    sizes = {n["metadata"]["name"]: CPUS for n in member.get("/api/v1/nodes")["items"]}
    return [o.pod for o in overcommits(member.audit_events(since), cpus_of(posted), sizes)]


def test_pods_of_both_schedulers_land_each_by_its_own(
    member1: Cluster, namespace: str, nodes: Callable[[int], list[str]]
) -> None:
    nodes(6)
    since = member1.audit_mark()
    posted = []
    with posting(member1) as post:
        for index in range(4):
            posted.append(post(plain_pod(namespace, f"theirs-{index}")))
        wait_for("the cluster's own pods", lambda: len(bound(member1, namespace, "theirs")) == 4, GENEROUS)
        for gang in ("one", "two"):
            post(pod_group(namespace, gang, 3))
            posted += [post(gang_pod(namespace, gang, i, cpu="2", schedulerName="muster")) for i in range(3)]
        posted.append(post(plain_pod(namespace, "ours", schedulerName="muster")))
        wait_for("all of them", lambda: len(bound(member1, namespace)) == 11, GENEROUS)
    binders = {e.name: e.user for e in bindings_posted(member1, namespace, since)}
    assert {name for name, user in binders.items() if user == USERS[SCHEDULER][0]} == {f"theirs-{i}" for i in range(4)}
    assert {user for name, user in binders.items() if not name.startswith("theirs")} == {USERS[EXTENDER][0]}
    assert overcommitted(member1, since, posted) == []


def test_a_gang_pod_that_names_the_clusters_own_scheduler_is_bound_without_its_gang(
    member1: Cluster, namespace: str, nodes: Callable[[int], list[str]]
) -> None:
    """Nothing can hold it back there: that is why copies of jobs are given schedulerName muster."""
    nodes(2)
    with posting(member1) as post:
        post(pod_group(namespace, "gang", 2))
        post(gang_pod(namespace, "gang", 0))
        wait_for("it is bound", lambda: bound(member1, namespace) == ["gang-0"], GENEROUS)
    [event] = bindings_posted(member1, namespace)
    assert event.user == USERS[SCHEDULER][0]


def test_a_promise_that_the_other_scheduler_breaks_is_made_anew_and_kept(
    member1: Cluster, namespace: str, nodes: Callable[[int], list[str]], reserve: Callable[[Json], None]
) -> None:
    """Two workers of 3 CPUs on two of three nodes; a plain pod takes a planned one. The hub, which never heard of it,
    goes on, and both pods land on the two nodes that are left."""
    everywhere = set(nodes(3))
    since, broken = member1.audit_mark(), metric(member1, BROKEN)
    reserve(reservation(namespace, workers=2, cpu="3"))
    wait_for("Reserved", lambda: status(member1, namespace).get("state") == "Reserved", GENEROUS)
    planned = [place["node"] for place in status(member1, namespace)["placements"]]
    with posting(member1) as post:
        posted = [post(plain_pod(namespace, "intruder", cpu="2", **on(planned[0])))]
        wait_for("the promise is broken", lambda: metric(member1, BROKEN) == broken + 1, GENEROUS)
        member1.kubectl(
            "patch", "gangreservation", f"{namespace}-1", "-n", "muster-system", "--type=merge",
            "-p", '{"spec": {"state": "Dispatched"}}',
        )  # fmt: skip
        posted += [post(worker(namespace, index, cpu="3")) for index in range(2)]
        wait_for(
            "Landed", lambda: renew_hub(member1) and status(member1, namespace)["state"] == "Landed", GENEROUS, 0.5
        )
    assert {place["node"] for place in status(member1, namespace)["placements"]} == everywhere - {planned[0]}
    assert overcommitted(member1, since, posted) == []


def renew_hub(member: Cluster) -> bool:
    """The hub's Lease, without which no pod of a hub's gang is admitted; there is no dispatcher here to renew it."""
    with contextlib.closing(member.rest()) as rest:
        leases = "/apis/coordination.k8s.io/v1/namespaces/muster-system/leases"
        spec = {"holderIdentity": "hub", "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        if read(member, f"{leases}/muster-hub") is None:
            rest.post(leases, {"metadata": {"name": "muster-hub"}, "spec": spec})
        else:
            rest.merge_patch(f"{leases}/muster-hub", {"spec": spec})
    return True


def worker(namespace: str, index: int, *, cpu: str) -> Json:
    """A pod of the reservation's gang, as the training operator makes it from the dispatched job."""
    pod = plain_pod(namespace, f"train-worker-{index}", cpu=cpu, schedulerName="muster")
    pod["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "train", "muster.dev/role": "worker"}
    pod["metadata"]["annotations"] = {"muster.dev/hub-id": "hub", "muster.dev/id": namespace, "muster.dev/epoch": "1"}
    return pod


def test_a_promise_that_cannot_be_made_anew_is_refused_with_what_is_missing(
    member1: Cluster, namespace: str, nodes: Callable[[int], list[str]], reserve: Callable[[Json], None]
) -> None:
    names = nodes(2)
    reserve(reservation(namespace, workers=2, cpu="3"))
    wait_for("Reserved", lambda: status(member1, namespace).get("state") == "Reserved", GENEROUS)
    with posting(member1) as post:
        post(plain_pod(namespace, "intruder", cpu="2", **on(names[0])))
        wait_for("Refused", lambda: status(member1, namespace).get("state") == "Refused", GENEROUS)
    refused = status(member1, namespace)
    assert refused["reason"] == "PromiseBroken"
    assert "1 of 2 pods" in refused["message"]
    assert "cpu" in refused["message"]


def test_room_taken_while_a_gang_is_at_the_barrier_moves_the_gang(
    member1: Cluster, namespace: str, nodes: Callable[[int], list[str]]
) -> None:
    """Two of three members are held, each for a node of its own. One node goes to a pod of the other scheduler: the
    gang lands on the three that are left."""
    names = nodes(4)
    since = member1.audit_mark()
    posted = []
    with posting(member1) as post:
        post(pod_group(namespace, "gang", 3))
        posted += [post(gang_pod(namespace, "gang", i, cpu="3", schedulerName="muster")) for i in range(2)]
        wait_for("two held", lambda: held(member1) == 2, GENEROUS)
        taken = planned_for(member1, namespace, "gang-0", names)
        posted.append(post(plain_pod(namespace, "intruder", cpu="2", **on(taken))))
        wait_for("taken", lambda: bound(member1, namespace) == ["intruder"], GENEROUS)
        posted.append(post(gang_pod(namespace, "gang", 2, cpu="3", schedulerName="muster")))
        wait_for("the gang landed", lambda: len(bound(member1, namespace, "gang")) == 3, GENEROUS)
    where = {p["metadata"]["name"]: p["spec"]["nodeName"] for p in pods(member1, namespace)}
    assert {where[f"gang-{i}"] for i in range(3)} == set(names) - {taken}
    assert overcommitted(member1, since, posted) == []


def planned_for(member: Cluster, namespace: str, pod: str, names: list[str]) -> str:
    """The node a held pod is planned on: the one that kube-scheduler, which assumes it there, offers to nobody else.

    Asked of the extender itself, as its scheduler would.
    """
    uid = read(member, f"/api/v1/namespaces/{namespace}/pods/{pod}")
    assert uid is not None
    answer = ask(member, {"Pod": uid, "NodeNames": names})
    [node] = answer["NodeNames"]
    return str(node)


def ask(member: Cluster, question: Json) -> Json:
    import json  # noqa: PLC0415
    import ssl  # noqa: PLC0415

    context = ssl.create_default_context(cafile=str(member.extender_pki / "ca.crt"))
    context.load_cert_chain(member.extender_pki / "client.crt", member.extender_pki / "client.key")
    url = f"https://127.0.0.1:{member.port('extender')}/filter"
    with urllib.request.urlopen(url, data=json.dumps(question).encode(), timeout=5, context=context) as reply:
        found: Json = json.loads(reply.read())
    return found


def test_room_taken_from_a_gang_that_has_no_other_makes_it_wait_whole(
    member1: Cluster, namespace: str, nodes: Callable[[int], list[str]]
) -> None:
    names = nodes(3)
    since = member1.audit_mark()
    posted = []
    with posting(member1) as post:
        post(pod_group(namespace, "gang", 3))
        posted += [post(gang_pod(namespace, "gang", i, cpu="3", schedulerName="muster")) for i in range(2)]
        wait_for("two held", lambda: held(member1) == 2, GENEROUS)
        posted.append(post(plain_pod(namespace, "intruder", cpu="2", **on(names[0]))))
        wait_for("taken", lambda: bound(member1, namespace) == ["intruder"], GENEROUS)
        posted.append(post(gang_pod(namespace, "gang", 2, cpu="3", schedulerName="muster")))
        wait_for("nobody of it waits at the barrier", lambda: held(member1) == 0, GENEROUS)
        assert bound(member1, namespace, "gang") == []
        delete_pods(member1, namespace, "intruder")
        wait_for("the gang landed", lambda: len(bound(member1, namespace, "gang")) == 3, GENEROUS)
    assert overcommitted(member1, since, posted) == []


def test_races_for_the_same_room_are_few_counted_and_never_tear_a_gang(
    member1: Cluster, namespace: str, nodes: Callable[[int], list[str]]
) -> None:
    """A gang and as many pods of the other scheduler come in the same instant, on nodes that hold one or the other.

    Two schedulers that do not know each other can both find the same room free: what is left of that, after the look
    that each commit takes, is counted by muster_overcommitted_by_others_total. On real nodes the kubelet would refuse
    the later pod.
    """
    names = nodes(4)
    order = random.Random(SEED)
    print(f"\n  seed {SEED}")
    collisions: Counter[str] = Counter()
    for number in range(RACES):
        since, counted = member1.audit_mark(), metric(member1, COLLISIONS)
        gang = f"gang{number}"
        posted: list[Json] = []
        wanted = order.sample(names, 3)
        theirs = threading.Thread(target=post_theirs, args=(member1, namespace, number, wanted, posted))
        with posting(member1) as post:
            post(pod_group(namespace, gang, 3))
            theirs.start()
            for index in range(3):
                posted.append(post(gang_pod(namespace, gang, index, cpu="3", schedulerName="muster")))
        theirs.join()
        wait_for("somebody is whole", functools.partial(whole, member1, namespace, gang, "theirs"), GENEROUS)
        delete_pods(member1, namespace, "theirs")
        wait_for("the gang is whole", functools.partial(whole, member1, namespace, gang), GENEROUS)
        found = overcommitted(member1, since, posted)
        wait_for(f"{found} are counted", functools.partial(counts, member1, counted + len(found)), GENEROUS)
        collisions.update("gang" if pod.startswith(f"{namespace}/gang") else "other" for pod in found)
        delete_pods(member1, namespace)
    print(f"\n  {RACES} races: Bindings too many, by the later one: {dict(collisions)}")


def counts(member: Cluster, collisions: int) -> bool:
    return metric(member, COLLISIONS) == collisions


def whole(member: Cluster, namespace: str, *prefixes: str) -> bool:
    return any(len(bound(member, namespace, prefix)) == 3 for prefix in prefixes)


def post_theirs(member: Cluster, namespace: str, number: int, wanted: list[str], posted: list[Json]) -> None:
    with posting(member) as post:
        for index, node in enumerate(wanted):
            posted.append(post(plain_pod(namespace, f"theirs{number}-{index}", cpu="2", **on(node))))
