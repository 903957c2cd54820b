"""MemberCluster.status: what the hub knows of each member, for people and for `kubectl wait --for=condition=Ready`."""

import logging

import msgspec

from dispatcher.fleet import Fleet
from dispatcher.member_health import conditions
from dispatcher.members import Member
from kube.api.api import MEMBER_CLUSTERS, Api
from kube.api.clock import Clock
from kube.api.errors import ApiError, Conflict, NotFound
from kube.api.writes import replace
from kube.objects.member_cluster import MemberClusterStatus

log = logging.getLogger(__name__)


class MemberStatusWriter:
    """`run()` belongs in a TaskGroup. Looks at every member each `every_seconds`, which also is how its silence is
    noticed, and writes what changed."""

    def __init__(self, hub: Api, fleet: Fleet, clock: Clock, *, every_seconds: float, call_seconds: float) -> None:
        self._hub = hub
        self._fleet = fleet
        self._clock = clock
        self._every = every_seconds
        self._call_seconds = call_seconds

    async def run(self) -> None:
        while True:
            for member in list(self._fleet):
                await self._write(member)
            await self._clock.sleep(self._every)

    async def _write(self, member: Member) -> None:
        wanted = status_of(member, self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"))
        if wanted == member.cluster.status:
            return
        body = msgspec.structs.replace(member.cluster, status=wanted)
        try:
            await replace(self._hub, MEMBER_CLUSTERS, body, subresource="status", timeout=self._call_seconds)
        except (Conflict, NotFound):
            return  # the watch brings the newer one
        except ApiError as error:
            log.info("status of member %s not written: %s", member.name, error)


def status_of(member: Member, wall: str) -> MemberClusterStatus:
    verdict = member.verdict()
    before = member.cluster.status
    capacity = member.capacity
    seen = verdict.fresh
    return MemberClusterStatus(
        conditions=conditions(verdict, before.conditions, wall, member.cluster.metadata.generation),
        # Accepted once; another uid under this name is another cluster until an admin clears this (rule 17).
        cluster_uid=before.cluster_uid or member.health.cluster_uid,
        version=member.version or before.version,
        dialect=member.dialect or before.dialect,
        nodes=capacity.nodes if seen else before.nodes,
        total=capacity.total if seen else before.total,
        free=capacity.free if seen else before.free,
        scheduler_name=capacity.scheduler_name or before.scheduler_name,
    )
