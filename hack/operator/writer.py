"""Carries out a plan against the API server, in the operators' order."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from hack.operator.job import JobObject
from hack.operator.reconcile import Plan
from hack.operator.status import ReplicaPod
from kube.api.api import POD_GROUPS, PODS, PYTORCH_JOBS, Api, Resource
from kube.api.clock import Clock
from kube.api.errors import AlreadyExists, Conflict, NotFound
from kube.objects.meta import Json

SERVICES = Resource("", "v1", "services", "Service")


class Writer:
    """pod_delay: seconds between two pods of a job; parallel: pods of a job created at once (the operators: one)."""

    def __init__(self, api: Api, clock: Clock, *, pod_delay: float = 0.0, parallel: int = 1) -> None:
        self._api = api
        self._clock = clock
        self._pod_delay = pod_delay
        self._parallel = parallel

    async def carry_out(
        self, plan: Plan, job: JobObject, *, made: Callable[[ReplicaPod], None], wanted: Callable[[], bool]
    ) -> JobObject | None:
        """The job with its new status, if that was written.

        made: told each pod that was created. wanted: asked between pods whether the job is still there.
        Raises ApiError, also where a pod of an older job of this name has to go first (AlreadyExists).
        """
        api, namespace, name = self._api, job.metadata.namespace, job.metadata.name
        if plan.pod_group is not None:
            await self._put_pod_group(plan.pod_group, namespace, name)
        for pod in plan.delete_pods:
            await _gone(api.delete(PODS, pod.metadata.name, namespace, uid=pod.metadata.uid))
        for service in plan.delete_services:
            await _gone(api.delete(SERVICES, service, namespace))
        if plan.delete_pod_group:
            await _gone(api.delete(POD_GROUPS, name, namespace))
        for start in range(0, len(plan.create_pods), self._parallel):
            if start and self._pod_delay:
                await self._clock.sleep(self._pod_delay)
            if not wanted():
                return None
            await self._create_pods(plan.create_pods[start : start + self._parallel], namespace, made)
        for service_body in plan.create_services:
            with suppress(AlreadyExists):
                await api.create(SERVICES, msgspec.json.encode(service_body), namespace)
        written = None if plan.status is None else await self._put_status(job, plan.status)
        if plan.delete_job:
            await _gone(api.delete(PYTORCH_JOBS, name, namespace, uid=job.metadata.uid))
        return written

    async def _create_pods(self, pods: list[Json], namespace: str, made: Callable[[ReplicaPod], None]) -> None:
        async def create(pod: Json) -> None:
            made(
                msgspec.json.decode(await self._api.create(PODS, msgspec.json.encode(pod), namespace), type=ReplicaPod)
            )

        errors = await asyncio.gather(*map(create, pods), return_exceptions=True)
        for error in errors:
            if error is not None:
                raise error

    async def _put_pod_group(self, wanted: Json, namespace: str, name: str) -> None:
        """A group of this name is taken over, whoever made it, as training-operator does."""
        try:
            there = msgspec.json.decode(await self._api.get(POD_GROUPS, name, namespace))
        except NotFound:
            with suppress(AlreadyExists):
                await self._api.create(POD_GROUPS, msgspec.json.encode(wanted), namespace)
            return
        if there.get("spec") != wanted["spec"]:
            body = msgspec.json.encode({**there, "spec": wanted["spec"]})
            await self._api.replace(POD_GROUPS, name, body, namespace)

    async def _put_status(self, job: JobObject, status: Json) -> JobObject:
        namespace, name = job.metadata.namespace, job.metadata.name
        body = {
            "apiVersion": PYTORCH_JOBS.api_version,
            "kind": PYTORCH_JOBS.kind,
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": job.metadata.uid,
                "resourceVersion": job.metadata.resource_version,
            },
            "spec": job.spec,
            "status": status,
        }
        written = await self._api.replace(
            PYTORCH_JOBS, name, msgspec.json.encode(body), namespace, subresource="status"
        )
        return msgspec.json.decode(written, type=JobObject)


async def _gone(deletion: Awaitable[bytes]) -> None:
    """Deleted before, or made anew since (uid precondition): both are what was wanted."""
    with suppress(NotFound, Conflict):
        await deletion
