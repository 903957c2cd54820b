"""Every API write per pod costs more than all that `filter` does: the API server's own record of who wrote what."""

from collections import Counter

from hack.fleet import pki
from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.spec import NodeShape
from tests.fleet.conftest import SetNodes
from tests.fleet.stories import GENEROUS, policy, pytorch_job, running, wait_landed

JOB = "train"
WORKERS = 7


def test_a_landed_gang_cost_one_binding_per_pod_and_no_refusal(
    fleet: Fleet, hub: Cluster, member1: Cluster, namespace: str, member_nodes: SetNodes
) -> None:
    member_nodes(member1=[NodeShape(count=4, cpu="4", gpus=0)], member2=[])
    since = member1.audit_mark()
    hub.apply(policy(namespace), pytorch_job(namespace, JOB, workers=WORKERS))
    wait_landed(member1, namespace, JOB, WORKERS + 1)
    wait_for("all running", lambda: len(running(member1, namespace)) == WORKERS + 1, GENEROUS)

    events = [e for e in member1.audit_events(since) if e.namespace == namespace and e.resource == "pods"]
    by_extender = Counter((e.verb, e.target, e.name) for e in events if e.user == pki.USERS[pki.EXTENDER][0])
    pods = [f"{JOB}-master-0", *(f"{JOB}-worker-{i}" for i in range(WORKERS))]
    assert by_extender == Counter({("create", "pods/binding", pod): 1 for pod in pods})

    by_scheduler = [(e.verb, e.target, e.name) for e in events if e.user == "system:kube-scheduler"]
    assert by_scheduler == [], "a status patch means that a pod of the gang was refused"
