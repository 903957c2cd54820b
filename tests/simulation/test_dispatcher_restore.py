"""The hub restored from a backup (rule 18), and members that another cluster answers for (rule 17)."""

from random import Random

from kube.api.api import LEASES, MEMBER_CLUSTERS, NAMESPACES
from kube.objects.names import HUB_INCARNATION, HUB_LEASE
from tests.simulation.clock import settled, virtual
from tests.simulation.dispatcher_fleet import PlayedFleet


async def restored(fleet: PlayedFleet, backup) -> None:
    """Stop all dispatchers, restore, start one."""
    await fleet.kill()
    fleet.hub.restore(backup)
    await fleet.start()


def incarnation(fleet: PlayedFleet, name: str) -> int:
    lease = fleet.members[name].server.existing(LEASES, HUB_LEASE, "muster-system")
    return int(lease["metadata"]["annotations"][HUB_INCARNATION])


@virtual
async def test_a_job_that_the_backup_knows_as_waiting_is_adopted_where_it_runs():
    async with PlayedFleet(Random(1), {"c1": 2, "c2": 4}) as fleet:
        fleet.members["c2"].refuse_all = "not now"
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.submit("train", 3)
        await fleet.until(lambda: bool(fleet.events("ScheduleBindingFailed")))
        backup = fleet.hub.backup()
        fleet.members["c2"].refuse_all = ""
        await fleet.until(lambda: fleet.state("train") == "Running", 600)
        epoch = fleet.attempt("train")["epoch"]
        await fleet.kill()
        await fleet.start()
        await fleet.members_ready()  # the backup is two incarnations old by now
        await restored(fleet, backup)
        await fleet.ready()
        await fleet.until(lambda: fleet.attempt("train").get("state") == "Landed", 120)
        assert fleet.attempt("train")["epoch"] == epoch
        await fleet.until(lambda: fleet.state("train") == "Running")
        assert fleet.where("train") == ["c2"]


@virtual
async def test_nothing_is_admitted_until_every_member_has_been_read():
    """c2, which cannot be reached, may hold what the backup has forgotten."""
    async with PlayedFleet(Random(2), {"c1": 4, "c2": 4}) as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        backup = fleet.hub.backup()
        for _ in range(2):
            await fleet.kill()
            await fleet.start()
            await fleet.members_ready()
        await fleet.kill()
        fleet.hub.restore(backup)
        await fleet.start()
        fleet.clients["c2"].cut()
        await fleet.ready()
        fleet.submit("train", 1)
        await settled(300)
        assert not fleet.attempt("train")
        fleet.clients["c2"].heal()
        await fleet.until(lambda: fleet.state("train") == "Running")
        await fleet.until(lambda: incarnation(fleet, "c1") == incarnation(fleet, "c2") > 3)


@virtual
async def test_a_member_that_another_cluster_answers_for_gets_nothing_until_it_is_accepted():
    async with PlayedFleet(Random(3), {"c1": 4, "c2": 4}) as fleet:
        await fleet.start()
        await fleet.members_ready()
        fleet.policy()
        fleet.submit("train", 3)
        await fleet.until(lambda: fleet.state("train") == "Running")
        cluster = fleet.attempt("train")["cluster"]
        server = fleet.members[cluster].server
        accepted = fleet.hub.existing(MEMBER_CLUSTERS, cluster)["status"]["clusterUID"]
        fleet.hub.patch(MEMBER_CLUSTERS, cluster, {"status": {"clusterUID": "another"}}, "", "status")
        await fleet.until(lambda: not fleet.member_ready(cluster))
        fleet.delete("train")
        await settled(120)
        assert fleet.where("train") == [cluster], "a replaced member proves nothing, and nothing in it is touched"
        fleet.hub.patch(MEMBER_CLUSTERS, cluster, {"status": {"clusterUID": None}}, "", "status")
        await fleet.until(lambda: fleet.job("train") is None)
        assert fleet.hub.existing(MEMBER_CLUSTERS, cluster)["status"]["clusterUID"] == accepted
        assert server.existing(NAMESPACES, "kube-system")["metadata"]["uid"] == accepted
