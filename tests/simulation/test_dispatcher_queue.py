"""The plainest queue mode: Queue and QueueUnit objects, max-jobs honoured, on simulated API servers."""

from random import Random

from kube.api.api import PYTORCH_JOBS, QUEUE_UNITS, QUEUES, QUOTA_TREES
from tests.simulation.clock import settled, virtual
from tests.simulation.dispatcher_fleet import PlayedFleet


def played():
    return PlayedFleet(Random(2), {"c1": 20})


@virtual
async def test_three_jobs_under_max_jobs_1_run_one_after_another():
    async with played() as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.quota_tree(max_jobs=1)
        fleet.policy(queued=True)
        for name in ("a", "b", "c"):
            fleet.submit(name, 1, run_for=30.0)
            await settled(1.5)  # creationTimestamp has whole seconds
        await fleet.until(lambda: fleet.state("a") == "Running")
        await settled(5)
        assert [fleet.where(name) for name in ("a", "b", "c")] == [["c1"], [], []]
        assert fleet.condition("b", "Scheduled")["message"] == "queue root/team: max-jobs 1 of 1 used"
        assert fleet.events("ScheduleBindingFailed") == ["queue root/team: max-jobs 1 of 1 used"] * 2
        await fleet.until(lambda: fleet.state("b") == "Running")
        assert fleet.state("a") == "Succeeded"
        await fleet.until(lambda: fleet.state("c") == "Succeeded")


@virtual
async def test_queue_objects_follow_the_tree():
    async with played() as fleet:
        await fleet.start()
        await fleet.ready()
        fleet.quota_tree(max_jobs=1)
        await fleet.until(lambda: len(fleet.hub.docs(QUEUES)) == 2)
        names = sorted(queue["metadata"]["name"] for queue in fleet.hub.docs(QUEUES))
        assert [name.rsplit("-", 1)[0] for name in names] == ["root", "root-team"] or names[0].startswith("root-")
        assert {q["metadata"]["annotations"]["kube-queue/quota-fullname"] for q in fleet.hub.docs(QUEUES)} == {
            "root", "root/team",
        }  # fmt: skip
        fleet.hub.delete(QUOTA_TREES, "elasticquotatree", "kube-system")
        await fleet.until(lambda: not fleet.hub.docs(QUEUES))


@virtual
async def test_a_queue_unit_tells_the_phase_and_is_owned_by_its_job():
    async with played() as fleet:
        await fleet.start()
        await fleet.ready()
        fleet.quota_tree(max_jobs=1)
        fleet.policy(queued=True)
        fleet.submit("a", 1)
        await settled(1.5)
        fleet.submit("b", 1)

        def unit(name):
            return fleet.hub.doc(QUEUE_UNITS, f"{name}-pytorchjob-rb-qu", "default") or {}

        await fleet.until(lambda: unit("a").get("status", {}).get("phase") == "Running")
        await fleet.until(lambda: unit("b").get("status", {}).get("phase") == "Enqueued")
        owner = unit("a")["metadata"]["ownerReferences"][0]
        assert owner["uid"] == (fleet.job("a") or {})["metadata"]["uid"]
        fleet.hub.delete(QUEUE_UNITS, "b-pytorchjob-rb-qu", "default")
        await fleet.until(lambda: unit("b").get("status", {}).get("phase") == "Enqueued"), "made anew (K19)"
        fleet.members["c1"].finish("a")
        await fleet.until(lambda: unit("a").get("status", {}).get("phase") == "Succeed")
        await fleet.until(lambda: unit("b").get("status", {}).get("phase") == "Running")


@virtual
async def test_a_namespace_outside_the_tree_is_held_and_says_so():
    """K8: and looked at again when the tree changes."""
    async with played() as fleet:
        await fleet.start()
        await fleet.ready()
        fleet.policy(queued=True)
        fleet.submit("a", 1)
        await fleet.until(lambda: (fleet.binding("a") or {}).get("status", {}).get("phase") == "Held")
        await settled(30)
        assert not fleet.where("a"), "suspension is never bypassed"
        fleet.quota_tree(max_jobs=1)
        await fleet.until(lambda: fleet.state("a") == "Running")


@virtual
async def test_quota_is_charged_while_workers_run_and_released_when_they_end():
    """cleanPodPolicy None: the master has succeeded, the workers go on (kueue#1574)."""
    async with played() as fleet:
        await fleet.start()
        await fleet.ready()
        fleet.quota_tree(max_jobs=1)
        fleet.policy(queued=True)
        fleet.submit("a", 1)
        await settled(1.5)
        fleet.submit("b", 1)
        await fleet.until(lambda: fleet.state("a") == "Running")
        server = fleet.members["c1"].server
        status = server.existing(PYTORCH_JOBS, "a", "default")["status"]
        done = {"type": "Succeeded", "status": "True", "reason": "PyTorchJobSucceeded", "message": "done"}
        ended = {"status": {**status, "conditions": [*status["conditions"], done]}}
        server.patch(PYTORCH_JOBS, "a", ended, "default", "status")
        await fleet.until(lambda: fleet.state("a") == "Succeeded")
        await settled(60)
        assert fleet.state("b") == "Created", "still charged"
        fleet.members["c1"].finish("a")
        await fleet.until(lambda: fleet.state("b") == "Running")


@virtual
async def test_deleting_a_waiting_job_leaves_nothing():
    async with played() as fleet:
        await fleet.start()
        await fleet.ready()
        fleet.quota_tree(max_jobs=1)
        fleet.policy(queued=True)
        fleet.submit("a", 1)
        await settled(1.5)
        fleet.submit("b", 1)
        await fleet.until(lambda: fleet.state("a") == "Running")
        fleet.delete("b")
        await fleet.until(lambda: fleet.job("b") is None)
        assert fleet.binding("b") is None
        await fleet.until(lambda: len(fleet.hub.docs(QUEUE_UNITS)) == 1)
