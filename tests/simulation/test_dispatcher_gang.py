"""Gang mode from the user's job to its end, on simulated API servers and virtual time."""

from random import Random

from kube.api.api import EVENTS, MEMBER_CLUSTERS, POD_GROUPS, POLICIES, PYTORCH_JOBS, RESERVATIONS, SECRETS
from kube.objects.names import FINALIZER, HUB_ID, JOB_ID, MUSTER_NAMESPACE
from tests.simulation.clock import settled, virtual
from tests.simulation.dispatcher_fleet import PlayedFleet


def played(members=None, **options):
    return PlayedFleet(Random(1), members or {"c1": 4, "c2": 8}, **options)


@virtual
async def test_a_job_lands_runs_ends_and_goes():
    async with played() as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.submit("train", 2)
        took = await fleet.until(lambda: fleet.state("train") == "Running")
        assert took < 2
        assert fleet.where("train") == ["c1"], "the tightest fit"
        copy = fleet.members["c1"].server.existing(PYTORCH_JOBS, "train", "default")
        hub_job = fleet.job("train")
        assert hub_job is not None
        assert FINALIZER in hub_job["metadata"]["finalizers"]
        assert copy["metadata"]["annotations"][JOB_ID] == hub_job["metadata"]["annotations"][JOB_ID]
        assert fleet.events("ScheduleBindingSucceed") == [
            "Binding has been scheduled successfully. Result: {c1:0,[{master 1} {worker 2}]}"
        ]
        await fleet.until(lambda: fleet.condition("train", "Running").get("status") == "True")
        fleet.members["c1"].finish("train")
        await fleet.until(lambda: fleet.state("train") == "Succeeded")
        await fleet.until(lambda: ((fleet.binding("train") or {})["spec"].get("result") or {}).get("released") is True)
        assert not fleet.members["c1"].server.docs(RESERVATIONS)
        assert fleet.where("train") == ["c1"], "rule 9: the copy stays until the hub's job goes"
        fleet.delete("train")
        await fleet.until(lambda: fleet.job("train") is None)
        assert fleet.left() == []


@virtual
async def test_events_come_from_the_default_scheduler():
    async with played() as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.submit("train")
        await fleet.until(lambda: bool(fleet.events("ScheduleBindingSucceed")))
        event = next(e for e in fleet.hub.docs(EVENTS) if e["reason"] == "ScheduleBindingSucceed")
        assert (event["type"], event["source"]["component"]) == ("Normal", "default-scheduler")
        assert event["involvedObject"]["uid"] == (fleet.job("train") or {})["metadata"]["uid"]


@virtual
async def test_a_job_without_a_policy_is_left_alone():
    async with played() as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.submit("train")
        await settled(30)
        assert fleet.left() == []
        job = fleet.job("train")
        assert job is not None
        assert "status" not in job
        assert not job["metadata"].get("finalizers")
        fleet.policy()
        await fleet.until(lambda: fleet.state("train") == "Running")


@virtual
async def test_a_job_that_fits_nowhere_waits_says_why_and_goes_when_room_appears():
    async with played({"c1": 2, "c2": 3}) as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.submit("big", 3)
        await fleet.until(lambda: bool(fleet.condition("big", "Scheduled")))
        await settled(20)
        condition = fleet.condition("big", "Scheduled")
        assert (condition["status"], condition["reason"]) == ("False", "NoClusterFits")
        assert "c1: largest fit 2 of 4 pods" in condition["message"]
        assert "c2: largest fit 3 of 4 pods" in condition["message"]
        assert [r["cluster"] for r in (fleet.binding("big") or {})["status"]["reasons"]] == ["c1", "c2"]
        assert fleet.events("ScheduleBindingFailed")
        assert fleet.state("big") == "Created"
        assert not fleet.where("big")
        fleet.members["c2"].slots = 4
        took = await fleet.until(lambda: bool(fleet.where("big")))
        assert took <= 2.0
        assert fleet.where("big") == ["c2"]


@virtual
async def test_refused_by_one_member_it_goes_to_the_next_with_a_higher_epoch():
    async with played() as fleet:
        fleet.members["c1"].refuse_all = "a ResourceQuota of the namespace stands in the way"
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.submit("train", 2)
        await fleet.until(lambda: fleet.state("train") == "Running")
        assert fleet.where("train") == ["c2"]
        assert fleet.attempt("train")["epoch"] == 2
        assert not fleet.members["c1"].server.docs(RESERVATIONS)


@virtual
async def test_refused_by_all_it_waits_ever_longer_and_says_what_they_said():
    async with played() as fleet:
        for member in fleet.members.values():
            member.refuse_all = "a ResourceQuota stands in the way"
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.submit("train", 2)
        await settled(600)
        epochs = (fleet.binding("train") or {})["spec"]["lastEpoch"]
        assert 4 <= epochs <= 40, "asked again, at growing intervals"
        assert "ResourceQuota" in fleet.condition("train", "Scheduled")["message"]
        for member in fleet.members.values():
            member.refuse_all = ""
        await fleet.until(lambda: fleet.state("train") == "Running", 400)


@virtual
async def test_two_jobs_do_not_take_the_same_room():
    """F3: the second sees the first's promise before any report includes it."""
    async with played({"c1": 4}) as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.submit("a", 2)
        fleet.submit("b", 2)
        await fleet.until(lambda: "Running" in (fleet.state("a"), fleet.state("b")))
        await settled(10)
        waiting = "b" if fleet.state("a") == "Running" else "a"
        assert (fleet.binding(waiting) or {})["spec"].get("lastEpoch", 0) == 0, "it was never sent to be refused"
        running = "a" if waiting == "b" else "b"
        fleet.members["c1"].finish(running)
        await fleet.until(lambda: fleet.state(waiting) == "Running")


@virtual
async def test_an_invalid_job_says_what_is_wrong_and_goes_once_corrected():
    async with played() as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.submit("bad", -1)
        await fleet.until(lambda: fleet.condition("bad", "Valid").get("status") == "False")
        assert "replicas" in fleet.condition("bad", "Valid")["message"]
        await fleet.until(lambda: fleet.state("bad") == "Invalid")
        await fleet.until(lambda: bool(fleet.events("InvalidJob")))
        good = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}}}
        fleet.hub.patch(PYTORCH_JOBS, "bad", good, "default")
        await fleet.until(lambda: fleet.state("bad") == "Running")
        assert fleet.condition("bad", "Valid")["status"] == "True"


@virtual
async def test_deleting_a_running_job_takes_everything_away():
    async with played() as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.submit("train", 2)
        await fleet.until(lambda: fleet.state("train") == "Running")
        assert fleet.members["c1"].server.docs(POD_GROUPS)
        fleet.delete("train")
        await fleet.until(lambda: fleet.job("train") is None)
        assert fleet.left() == []


@virtual
async def test_a_job_made_again_under_its_name_waits_for_the_first_to_be_gone():
    async with played({"c1": 4}) as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.submit("train", 2)
        await fleet.until(lambda: fleet.state("train") == "Running")
        first = fleet.attempt("train"), (fleet.binding("train") or {})["spec"]["id"]
        fleet.hub.patch(PYTORCH_JOBS, "train", {"metadata": {"finalizers": None}}, "default")
        fleet.delete("train")
        fleet.submit("train", 2)
        await fleet.until(lambda: (fleet.binding("train") or {}).get("spec", {}).get("id", first[1]) != first[1])
        await fleet.until(lambda: fleet.state("train") == "Running")
        copy = fleet.members["c1"].server.existing(PYTORCH_JOBS, "train", "default")
        assert copy["metadata"]["annotations"][JOB_ID] == (fleet.binding("train") or {})["spec"]["id"]


@virtual
async def test_somebody_elses_job_of_that_name_in_a_member_is_left_alone():
    """F23."""
    async with played() as fleet:
        theirs = fleet.members["c1"].server
        theirs.create(PYTORCH_JOBS, {"metadata": {"name": "train"}, "spec": {"pytorchReplicaSpecs": {}}}, "default")
        uid = theirs.existing(PYTORCH_JOBS, "train", "default")["metadata"]["uid"]
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.submit("train", 2)
        await fleet.until(lambda: fleet.state("train") == "Running")
        assert fleet.attempt("train")["cluster"] == "c2"
        assert theirs.existing(PYTORCH_JOBS, "train", "default")["metadata"]["uid"] == uid
        assert not theirs.docs(RESERVATIONS)


@virtual
async def test_a_copy_deleted_by_hand_runs_elsewhere_or_again_once_nothing_of_it_is_left():
    async with played({"c1": 4}) as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.submit("train", 2)
        await fleet.until(lambda: fleet.state("train") == "Running")
        fleet.members["c1"].server.delete(PYTORCH_JOBS, "train", "default")
        await fleet.until(lambda: fleet.attempt("train").get("epoch") == 2)
        await fleet.until(lambda: fleet.state("train") == "Running")


@virtual
async def test_the_ttl_of_a_finished_job_is_kept_by_the_hub():
    async with played() as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.submit("train", 1, run_for=10.0, runPolicy={"ttlSecondsAfterFinished": 60})
        await fleet.until(lambda: fleet.state("train") == "Succeeded")
        await settled(40)
        copy = fleet.members["c1"].server.existing(PYTORCH_JOBS, "train", "default")
        assert "ttlSecondsAfterFinished" not in copy["spec"].get("runPolicy", {})
        took = await fleet.until(lambda: fleet.job("train") is None)
        assert took < 40
        assert fleet.left() == []


@virtual
async def test_suspending_and_resuming():
    async with played({"c1": 4}) as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.submit("train", 1)
        await fleet.until(lambda: fleet.state("train") == "Running")
        fleet.hub.patch(PYTORCH_JOBS, "train", {"spec": {"runPolicy": {"suspend": True}}}, "default")
        await fleet.until(lambda: not fleet.where("train"))
        await fleet.until(lambda: (fleet.binding("train") or {})["status"]["phase"] == "Held")
        await settled(60)
        assert not fleet.where("train")
        fleet.hub.patch(PYTORCH_JOBS, "train", {"spec": {"runPolicy": {"suspend": False}}}, "default")
        await fleet.until(lambda: fleet.state("train") == "Running")


@virtual
async def test_a_kubeconfig_that_runs_programs_is_refused_and_harms_nobody_else():
    async with played() as fleet:
        fleet.hub.patch(SECRETS, "c1-kubeconfig", {"data": {"kubeconfig": "ZXhlYw=="}}, MUSTER_NAMESPACE)
        await fleet.start()
        await fleet.until(lambda: fleet.member_ready("c2"))
        fleet.policy()
        fleet.submit("train", 2)
        await fleet.until(lambda: fleet.state("train") == "Running")
        assert fleet.where("train") == ["c2"]
        await settled(3)
        conditions = fleet.hub.existing(MEMBER_CLUSTERS, "c1")["status"]["conditions"]
        ready = next(c for c in conditions if c["type"] == "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "KubeconfigRefused")
        assert "exec" in ready["message"]
        good = {"data": {"kubeconfig": "YzE="}}
        fleet.hub.patch(SECRETS, "c1-kubeconfig", good, MUSTER_NAMESPACE)
        await fleet.until(lambda: fleet.member_ready("c1"))


@virtual
async def test_a_policy_that_selects_nothing_is_told_so():
    async with played() as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.policy(
            resourceSelectors=[
                {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "nobody"},
                {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "labelSelector": {"matchLabels": {"a": "b"}}},
            ]
        )
        fleet.submit("train")
        await fleet.until(lambda: bool(fleet.events("SelectsNothing")))
        assert "resourceSelectors[1]" in fleet.events("SelectsNothing")[0]

        def matched() -> str:
            (policy,) = fleet.hub.docs(POLICIES)
            found = [c for c in policy.get("status", {}).get("conditions", []) if c["type"] == "Matched"]
            return str(found[0]["status"]) if found else ""

        await fleet.until(lambda: matched() == "False")
        fleet.submit("nobody")
        await fleet.until(lambda: matched() == "True"), "looked at again when jobs come"
        fleet.delete("nobody")
        await fleet.until(lambda: matched() == "False"), "and go"


@virtual
async def test_objects_in_members_carry_the_hubs_id():
    async with played({"c1": 4}) as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.submit("train")
        await fleet.until(lambda: fleet.state("train") == "Running")
        server = fleet.members["c1"].server
        hub_id = (fleet.binding("train") or {})["spec"]["hubID"]
        for resource in (PYTORCH_JOBS, POD_GROUPS):
            (document,) = server.docs(resource)
            assert document["metadata"]["annotations"][HUB_ID] == hub_id
        assert fleet.hub.docs(POLICIES)
