"""Removes what jobs without a binding left in members; what two sweeps in a row find, and a live read confirms."""

import logging
from collections.abc import Callable

from dispatcher.binding_store import BindingStore
from dispatcher.fleet import Fleet
from dispatcher.members import Member
from dispatcher.observations import Stray
from dispatcher.orphans import verdict
from kube.api.api import BINDINGS, PYTORCH_JOBS, RESERVATIONS, Api
from kube.api.clock import Clock
from kube.api.errors import ApiError, Conflict, NotFound
from kube.api.writes import delete_if_there, read
from kube.objects.binding import ResourceBinding, binding_name
from kube.objects.names import MUSTER_NAMESPACE
from kube.objects.reservation import reservation_name

log = logging.getLogger(__name__)


class OrphanSweep:
    """`run()` belongs in a TaskGroup. on_lost(cluster, id): a job the hub has no record of; its objects are left."""

    def __init__(
        self,
        hub: Api,
        store: BindingStore,
        fleet: Fleet,
        clock: Clock,
        *,
        every_seconds: float,
        call_seconds: float,
        on_lost: Callable[[str, str], None],
    ) -> None:
        self._hub = hub
        self._store = store
        self._fleet = fleet
        self._clock = clock
        self._every = every_seconds
        self._call_seconds = call_seconds
        self._on_lost = on_lost
        self._suspects: set[tuple[str, str]] = set()

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._every)
            await self.sweep()

    async def sweep(self) -> None:
        """A member that fails, or takes too long, is tried again at the next sweep."""
        found: set[tuple[str, str]] = set()
        for member in list(self._fleet):
            if member.verdict().connection != "Reachable":
                continue
            for job_id in member.caches.ids():
                if self._store.by_id(job_id) is None:
                    found.add((member.name, job_id))
                    if (member.name, job_id) in self._suspects:
                        try:
                            await self._judge(member, job_id)
                        except Conflict:
                            log.debug("%s: %s changed; looked at again", member.name, job_id)
                        except ApiError as error:
                            log.info("%s: orphans of %s not removed: %s", member.name, job_id, error)
                            break
        self._suspects = found

    async def _judge(self, member: Member, job_id: str) -> None:
        stray = member.caches.stray(member.name, job_id, None)
        api = member.api
        if stray is None or api is None or await self._has_binding(member, job_id):
            return
        if verdict(stray) == "Report":
            self._on_lost(member.name, job_id)
            return
        for reservation in stray.reservations:
            await delete_if_there(
                api, RESERVATIONS, reservation_name(job_id, reservation.epoch), MUSTER_NAMESPACE,
                uid=reservation.uid, resource_version=reservation.resource_version, timeout=self._call_seconds,
            )  # fmt: skip
        await self._remove_copy(member, api, job_id, stray)

    async def _remove_copy(self, member: Member, api: Api, job_id: str, stray: Stray) -> None:
        seen = member.caches.copy(job_id)
        if seen is None or stray.copy is None or stray.copy.deleting:
            return
        await delete_if_there(
            api, PYTORCH_JOBS, seen.metadata.name, seen.metadata.namespace, uid=stray.copy.uid,
            resource_version=stray.copy.resource_version, timeout=self._call_seconds,
        )  # fmt: skip
        log.info("%s: removed the orphaned copy of %s", member.name, job_id)

    async def _has_binding(self, member: Member, job_id: str) -> bool:
        """Read live, under each name that the objects tell."""
        keys = {(r.spec.job_namespace, r.spec.job_name) for r in member.caches.reservations(job_id)}
        if (copy := member.caches.copy(job_id)) is not None:
            keys.add(copy.metadata.key)
        for namespace, name in keys:
            try:
                found = await read(
                    self._hub, BINDINGS, ResourceBinding, binding_name(name), namespace, timeout=self._call_seconds
                )
            except NotFound:
                continue
            if found is not None and found.spec.job_id == job_id:
                return True
        return False
