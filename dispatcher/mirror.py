"""Shows what is: writes the hub job's status, the binding's status and the QueueUnit, and speaks the job's events.

Nothing here decides. What is equal to what the watches show is not written (F27); what cannot be written is tried
again. A few writers share the queue of jobs to look at, so that 10,000 jobs whose reason changed do not flood the hub.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from dispatcher import reasons
from dispatcher.backoff import Backoff
from dispatcher.binding_status import Waiting, status, why_waiting
from dispatcher.binding_store import BindingStore, Key
from dispatcher.fleet import Fleet
from dispatcher.hub_job_status import wanted_status
from dispatcher.hub_watches import HubWatches, Undecoded, parsed
from dispatcher.intents import Reading
from dispatcher.leadership import NotLeading
from dispatcher.queue_units import desired_queue_unit, queue_unit_name, queue_unit_status
from dispatcher.readings import Readings
from dispatcher.status_mirror import observe, running_condition
from dispatcher.views import copy_view
from kube.api.api import BINDINGS, PYTORCH_JOBS, QUEUE_UNITS, Api
from kube.api.clock import Clock
from kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from kube.api.events import EventRecorder, ObjectReference
from kube.api.writes import delete_if_there, replace
from kube.objects.binding import BindingStatus, ResourceBinding, binding_name
from kube.objects.meta import Condition, Json

log = logging.getLogger(__name__)


class Mirror:
    """`run()` belongs in a TaskGroup. situation(key): why the job is where it is, without its Running condition."""

    def __init__(
        self,
        hub: Api,
        watches: HubWatches,
        store: BindingStore,
        readings: Readings,
        fleet: Fleet,
        events: EventRecorder,
        *,
        clock: Clock,
        hub_id: str,
        writers: int,
        retry: Backoff[Key],
        call_seconds: float,
        situation: Callable[[Key], Waiting],
        on_written: Callable[[float], None],
    ) -> None:
        self._hub = hub
        self._watches = watches
        self._store = store
        self._readings = readings
        self._fleet = fleet
        self._events = events
        self._clock = clock
        self._hub_id = hub_id
        self._writers = writers
        self._retry = retry
        self._call_seconds = call_seconds
        self._situation = situation
        self._on_written = on_written
        self._dirty: dict[Key, float] = {}
        """key -> since when, on the monotonic clock."""
        self._busy: set[Key] = set()
        self._nudge = asyncio.Event()
        watches.queue_units.subscribe(self._unit_changed)

    @property
    def backlog(self) -> int:
        return len(self._dirty) + len(self._busy)

    def touch(self, key: Key) -> None:
        self._dirty.setdefault(key, self._clock.monotonic())
        self._nudge.set()

    def _unit_changed(self, _: object, old: Undecoded | None, new: Undecoded | None) -> None:
        """A QueueUnit that somebody edited or removed is repaired."""
        unit = new or old
        owner = next(iter(unit.metadata.owner_references), None) if unit else None
        if unit is not None and owner is not None:
            self.touch((unit.metadata.namespace, owner.name))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for _ in range(self._writers):
                tasks.create_task(self._write())

    async def _write(self) -> None:
        while True:
            key = self._take()
            if key is None:
                self._nudge.clear()
                await self._nudge.wait()
                continue
            since = self._dirty.pop(key)
            self._busy.add(key)
            try:
                if await self.reflect(key):
                    self._on_written(self._clock.monotonic() - since)
                self._retry.forget(key)
            except NotLeading:
                return
            except ApiError as error:
                pause = self._retry.failed(key, self._clock.monotonic())
                log.info("%s/%s: status not written (%s); again in %.1fs", *key, error, pause)
                self._tasks.create_task(self._later(key, pause))
            except Exception:
                # One job's status must not hold up all others, as an end of the process would, again and again.
                log.exception("bug: the status of %s/%s cannot be told; the others go on", *key)
                self._tasks.create_task(self._later(key, self._retry.failed(key, self._clock.monotonic())))
            finally:
                self._busy.discard(key)
                self._nudge.set()

    def _take(self) -> Key | None:
        return next((key for key in self._dirty if key not in self._busy), None)

    async def _later(self, key: Key, pause: float) -> None:
        await self._clock.sleep(pause)
        self.touch(key)

    async def reflect(self, key: Key) -> bool:
        """Whether anything had to be written. Raises ApiError."""
        binding = self._store.get(key)
        if binding is None:
            return await self._remove_unit(key)
        reading = self._readings.get(key, binding.spec.policy)
        copy_status = self._copy_status(binding)
        waiting = self._situation(key)
        if copy_status is not None:
            waiting = msgspec.structs.replace(
                waiting,
                running=running_condition(
                    observe({"status": copy_status}),
                    binding.spec,
                    binding.metadata.generation,
                    _condition(binding, "Running"),
                    self._now(),
                ),
            )
        job = self._watches.jobs.get(*key)
        wrote = False
        if job is not None and reading is not None and job.metadata.uid == binding.spec.job.uid:
            wrote |= await self._job_status(job, reading, binding, copy_status)
            self._speak(job, binding, waiting, reading)
        wrote |= await self._binding_status(binding, waiting)
        if job is not None and binding.spec.queued:
            wrote |= await self._unit(self._store.get(key) or binding, reading)
        return wrote

    def _copy_status(self, binding: ResourceBinding) -> Json | None:
        """Of the copy of the present attempt; None: there is none, or its member does not show it."""
        attempt = binding.spec.attempt
        member = self._fleet.get(attempt.cluster) if attempt else None
        if attempt is None or member is None:
            return None
        copy = member.caches.copy(binding.spec.job_id)
        if copy is None or copy_view(copy.metadata, None, self._hub_id).epoch != attempt.epoch:
            return None
        return copy.status or {}

    async def _job_status(
        self, job: Undecoded, reading: Reading, binding: ResourceBinding, copy_status: Json | None
    ) -> bool:
        wanted = wanted_status(
            parsed(job.status), reading.job, reading.view.problem, binding.spec, copy_status, self._now()
        )
        if wanted is None:
            return False
        meta = job.metadata
        body: Json = {
            "apiVersion": PYTORCH_JOBS.api_version,
            "kind": PYTORCH_JOBS.kind,
            "metadata": {
                "name": meta.name, "namespace": meta.namespace, "uid": meta.uid,
                "resourceVersion": meta.resource_version,
            },
            "spec": parsed(job.spec),
            "status": wanted,
        }  # fmt: skip
        try:
            await self._hub.replace(
                PYTORCH_JOBS, meta.name, msgspec.json.encode(body), meta.namespace, subresource="status",
                timeout=self._call_seconds,
            )  # fmt: skip
        except (Conflict, NotFound):
            return False  # the watch brings the newer one, and with it another look
        return True

    async def _binding_status(self, binding: ResourceBinding, waiting: Waiting) -> bool:
        wanted = status(binding.spec, waiting, binding.status, self._now(), binding.metadata.generation)
        if wanted == binding.status:
            return False
        body = msgspec.structs.replace(binding, status=wanted)
        try:
            written = await replace(
                self._hub, BINDINGS, body, subresource="status", timeout=self._call_seconds
            )  # fmt: skip
        except (Conflict, NotFound):
            return False
        self._store.put(written)
        return True

    def _speak(self, job: Undecoded, binding: ResourceBinding, waiting: Waiting, reading: Reading) -> None:
        """Events for what has changed since the status that is there. Said before the status is written: a crash in
        between says it twice, and equal events are one."""
        spec, before = binding.spec, binding.status
        after = status(spec, waiting, before, "", binding.metadata.generation)
        regarding = ObjectReference(
            api_version=PYTORCH_JOBS.api_version, kind=PYTORCH_JOBS.kind, name=job.metadata.name,
            namespace=job.metadata.namespace, uid=job.metadata.uid,
        )  # fmt: skip
        scheduled, was_scheduled = _of(after, "Scheduled"), _of(before, "Scheduled")
        if scheduled and scheduled.status == "True" and not (was_scheduled and was_scheduled.status == "True"):
            assert spec.attempt is not None
            text = reasons.scheduled(spec.attempt.cluster, spec.components)
            self._events.record(regarding, "Normal", reasons.SCHEDULED, text, component=reasons.EVENT_SOURCE)
        why = reasons.event_form(why_waiting(spec, waiting))
        if why and why != (reasons.event_form(was_scheduled.message) if was_scheduled else ""):
            if waiting.wait is not None and waiting.wait.reason == "Invalid":
                self._events.record(regarding, "Warning", "InvalidJob", why)
            else:
                self._events.record(regarding, "Warning", reasons.FAILED, why, component=reasons.EVENT_SOURCE)
        if not before.phase:
            for warning in reading.warnings:
                self._events.record(regarding, "Warning", "JobWarning", warning)

    async def _unit(self, binding: ResourceBinding, reading: Reading | None) -> bool:
        meta = binding.metadata
        name = queue_unit_name(meta.name)
        there = self._watches.queue_units.get(meta.namespace, name)
        desired = desired_queue_unit(binding, queue=reading.queue if reading is not None else "")
        wrote = False
        if there is None:
            try:
                body = msgspec.json.encode(desired)
                await self._hub.create(QUEUE_UNITS, body, meta.namespace, timeout=self._call_seconds)
            except AlreadyExists:
                return False
            wrote = True
        elif parsed(there.spec) != _as_json(desired["spec"]):
            desired["metadata"]["resourceVersion"] = there.metadata.resource_version
            try:
                await self._hub.replace(
                    QUEUE_UNITS, name, msgspec.json.encode(desired), meta.namespace, timeout=self._call_seconds
                )
            except (Conflict, NotFound):
                return wrote
            return True
        before = parsed(there.status) if there is not None else None
        wanted = queue_unit_status(binding, before, self._now(), self._readings.needed_checks(reading))
        if wanted == (before or {}):
            return wrote
        changed: Json = {"status": {k: v for k, v in wanted.items() if v != (before or {}).get(k)}}
        if there is not None and "admissionChecks" in changed["status"]:
            # Others write that list too: theirs must not be overwritten by what was read before it.
            changed["metadata"] = {"resourceVersion": there.metadata.resource_version}
        try:
            patch = msgspec.json.encode(changed)
            await self._hub.patch(
                QUEUE_UNITS, name, patch, meta.namespace, subresource="status", timeout=self._call_seconds
            )
        except (Conflict, NotFound):
            return wrote  # the watch brings the newer one, and with it another look
        return True

    async def _remove_unit(self, key: Key) -> bool:
        """Its binding is gone. Where the job goes too, the hub's garbage collector would do it; the job may stay."""
        unit = self._watches.queue_units.get(key[0], queue_unit_name(binding_name(key[1])))
        if unit is not None:
            return await delete_if_there(
                self._hub, QUEUE_UNITS, unit.metadata.name, unit.metadata.namespace, uid=unit.metadata.uid,
                timeout=self._call_seconds,
            )  # fmt: skip
        return False

    def _now(self) -> str:
        return self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")


def _of(found: BindingStatus, type_: str) -> Condition | None:
    return next((c for c in found.conditions if c.type == type_), None)


def _condition(binding: ResourceBinding, type_: str) -> Condition | None:
    return _of(binding.status, type_)


def _as_json(document: Json) -> Json:
    """As it comes back from the API: integers, strings, lists."""
    found: Json = msgspec.json.decode(msgspec.json.encode(document))
    return found
