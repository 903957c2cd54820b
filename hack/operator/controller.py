"""The shell around `reconcile`: watches, and one task per job that passes over it whenever something of it changed.

What it wrote itself counts before the watch shows it: pods it made until their first event, the status it put until a
newer version comes.
"""

import asyncio
import logging
from collections import defaultdict
from random import Random

import msgspec

from hack.operator.job import MASTER, WORKER, Dialect, JobObject
from hack.operator.pods import Gang
from hack.operator.reconcile import reconcile
from hack.operator.status import ReplicaPod
from hack.operator.writer import SERVICES, Writer
from kube.api.api import PODS, PYTORCH_JOBS, Api
from kube.api.clock import Clock
from kube.api.errors import ApiError
from kube.api.reflector import Change, Reflector
from kube.objects.meta import ObjectMeta

log = logging.getLogger("operator")

RETRY_FIRST, RETRY_CAP = 0.2, 5.0
"""Seconds between passes that fail."""
OURS = "training.kubeflow.org/job-name"
"""Label on every pod and Service of a job."""

Key = tuple[str, str]
"""(namespace, name) of a job."""


class ServiceObject(msgspec.Struct):
    metadata: ObjectMeta


class _Job:
    """What is known of one job beside the caches."""

    __slots__ = ("key", "order", "unseen", "wake", "written")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.wake = asyncio.Event()
        self.order = [MASTER, WORKER]
        self.unseen: dict[str, ReplicaPod] = {}
        """uid -> pod made here that the watch has not shown yet."""
        self.written: JobObject | None = None


class Operator:
    """`run()` ends by cancellation only."""

    def __init__(
        self, api: Api, clock: Clock, writer: Writer, rng: Random, *, dialect: Dialect, gang: Gang | None = None
    ) -> None:
        self._clock = clock
        self._writer = writer
        self._rng = rng
        self._dialect = dialect
        self._gang = gang
        self._documents = Reflector(api, PYTORCH_JOBS, JobObject, clock)
        self._pods = Reflector(api, PODS, ReplicaPod, clock, label_selector=OURS)
        self._services = Reflector(api, SERVICES, ServiceObject, clock, label_selector=OURS)
        self._pods_of: defaultdict[Key, dict[str, ReplicaPod]] = defaultdict(dict)
        self._services_of: defaultdict[Key, set[str]] = defaultdict(set)
        self._jobs: dict[Key, _Job] = {}
        self._group = asyncio.TaskGroup()

    @property
    def synced(self) -> bool:
        return all(each.synced.is_set() for each in (self._documents, self._pods, self._services))

    async def run(self) -> None:
        async with self._group as group:
            self._pods.subscribe(self._pod_changed)
            self._services.subscribe(self._service_changed)
            for task in (self._documents.run(), self._pods.run(), self._services.run()):
                group.create_task(task)
            for reflector in (self._documents, self._pods, self._services):
                await reflector.synced.wait()
            self._documents.subscribe(self._job_changed)

    def _job_changed(self, _: Change, old: JobObject | None, new: JobObject | None) -> None:
        if new is not None and new.metadata.key not in self._jobs:
            job = self._jobs[new.metadata.key] = _Job(new.metadata.key)
            self._group.create_task(self._follow(job), name=f"job {job.key}")
        for document in (old, new):
            if document is not None:
                self._wake(document.metadata.key)

    def _pod_changed(self, _: Change, old: ReplicaPod | None, new: ReplicaPod | None) -> None:
        pod = new or old
        key = None if pod is None else _owner(pod.metadata)
        if pod is None or key is None:
            return
        if new is not None:
            self._pods_of[key][pod.metadata.name] = new
        else:
            self._pods_of[key].pop(pod.metadata.name, None)
            if not self._pods_of[key]:
                del self._pods_of[key]
        if key in self._jobs:
            self._jobs[key].unseen.pop(pod.metadata.uid, None)
        self._wake(key)

    def _service_changed(self, _: Change, old: ServiceObject | None, new: ServiceObject | None) -> None:
        service = new or old
        key = None if service is None else _owner(service.metadata)
        if service is None or key is None:
            return
        if new is not None:
            self._services_of[key].add(service.metadata.name)
        else:
            self._services_of[key].discard(service.metadata.name)
            if not self._services_of[key]:
                del self._services_of[key]
        self._wake(key)

    def _wake(self, key: Key) -> None:
        if key in self._jobs:
            self._jobs[key].wake.set()

    async def _follow(self, job: _Job) -> None:
        """Passes over one job for as long as it exists."""
        failures = 0
        while True:
            job.wake.clear()
            document = self._newest(job)
            if document is None:
                del self._jobs[job.key]
                return
            try:
                again_after = await self._pass(job, document)
                failures = 0
            except ApiError as error:
                log.warning("%s/%s: %s", *job.key, error)
                await self._clock.sleep(min(RETRY_CAP, RETRY_FIRST * 2**failures))
                failures = min(failures + 1, 10)
                continue
            await self._woken(job, again_after)

    def _newest(self, job: _Job) -> JobObject | None:
        cached, written = self._documents.get(*job.key), job.written
        if cached is None or written is None or written.metadata.uid != cached.metadata.uid:
            return cached
        return max(cached, written, key=lambda document: int(document.metadata.resource_version or 0))

    async def _woken(self, job: _Job, after: float | None) -> None:
        """Until something of the job changes, or `after` seconds."""
        alarm = None if after is None else asyncio.create_task(self._ring(job, after))
        try:
            await job.wake.wait()
        finally:
            if alarm is not None:
                alarm.cancel()
                await asyncio.wait([alarm])

    async def _ring(self, job: _Job, after: float) -> None:
        await self._clock.sleep(after)
        job.wake.set()

    async def _pass(self, job: _Job, document: JobObject) -> float | None:
        uid = document.metadata.uid
        seen = self._pods_of.get(job.key, {}).values()
        self._rng.shuffle(job.order)
        plan = reconcile(
            document,
            [pod for pod in (*seen, *job.unseen.values()) if _owned_by(pod.metadata, uid)],
            self._services_of.get(job.key, ()),
            self._clock.now(),
            dialect=self._dialect,
            role_order=job.order,
            gang=self._gang,
        )
        if plan.complaint:
            log.info("%s/%s: %s", *job.key, plan.complaint)

        def made(pod: ReplicaPod) -> None:
            shown = self._pods_of.get(job.key, {}).get(pod.metadata.name)
            if shown is None or shown.metadata.uid != pod.metadata.uid:
                job.unseen[pod.metadata.uid] = pod

        def wanted() -> bool:
            current = self._documents.get(*job.key)
            return current is not None and current.metadata.uid == uid

        job.written = await self._writer.carry_out(plan, document, made=made, wanted=wanted) or job.written
        return plan.again_after


def _owner(metadata: ObjectMeta) -> Key | None:
    for owner in metadata.owner_references:
        if owner.controller and owner.kind == PYTORCH_JOBS.kind:
            return (metadata.namespace, owner.name)
    return None


def _owned_by(metadata: ObjectMeta, uid: str) -> bool:
    return any(owner.controller and owner.uid == uid for owner in metadata.owner_references)
