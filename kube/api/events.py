"""core/v1 Events: what `kubectl describe` shows. Deciders record and go on; a task of its own writes.

Messages hold no counters or times: equal (component, object, type, reason, message) is one Event whose count grows,
across restarts too, since its name is a hash of just that. After client-go tools/record.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from datetime import datetime
from random import Random
from typing import Literal

import msgspec

from kube.api.api import EVENTS, Api
from kube.api.backoff import Backoff
from kube.api.clock import Clock
from kube.api.errors import AlreadyExists, ApiError, NotFound, StatusError, TooManyRequests
from kube.objects.meta import ObjectMeta

log = logging.getLogger(__name__)

MESSAGE_LIMIT = 1024
"""Characters (core/v1 validation)."""
NAME_LIMIT = 230
"""Characters of the object's name that go into the Event's; with the hash it stays below 253."""
RETRY_BACKOFF = Backoff(first=0.5, factor=2.0, cap=30.0)


class ObjectReference(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, kw_only=True):
    """involvedObject. uid is required: describe looks events up by it."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str
    resource_version: str = ""
    field_path: str = ""


def reference(api_version: str, kind: str, metadata: ObjectMeta) -> ObjectReference:
    """Of an object read from the API: `reference("kubeflow.org/v1", "PyTorchJob", job.metadata)`."""
    return ObjectReference(
        api_version=api_version, kind=kind, name=metadata.name, namespace=metadata.namespace, uid=metadata.uid
    )


class _Identity(msgspec.Struct, frozen=True):
    """What makes two events equal."""

    component: str
    regarding: ObjectReference
    type: str
    reason: str
    message: str

    @property
    def namespace(self) -> str:
        """Events on cluster-scoped objects live in "default" (core/v1 validation)."""
        return self.regarding.namespace or "default"

    @property
    def name(self) -> str:
        digest = hashlib.blake2b(msgspec.json.encode(self), digest_size=8).hexdigest()
        return f"{self.regarding.name[:NAME_LIMIT].rstrip('.-')}.{digest}"


class _Count(msgspec.Struct):
    """Occurrences that are not written yet."""

    first: datetime
    last: datetime
    count: int = 1


class EventRecorder:
    """component: who speaks unless the event says otherwise ("muster-dispatcher"); instance: the process.

    At most `capacity` different events wait for the API server; more are dropped and counted.
    """

    def __init__(
        self,
        api: Api,
        clock: Clock,
        *,
        component: str,
        instance: str = "",
        capacity: int = 1000,
        remember: int = 4096,
        quiet_seconds: float = 10.0,
        call_seconds: float = 5.0,
        rng: Random | None = None,
    ) -> None:
        """remember: how many written events can still be counted up without asking the server. quiet_seconds: how
        often repetitions, added up meanwhile, are written."""
        self.dropped = 0
        self.failed = 0
        """Events given up because the API server refused them."""
        self._api = api
        self._clock = clock
        self._component = component
        self._instance = instance
        self._capacity = capacity
        self._remember = remember
        self._quiet_seconds = quiet_seconds
        self._call_seconds = call_seconds
        self._rng = rng or Random()  # noqa: S311 - jitter
        self._new: OrderedDict[_Identity, _Count] = OrderedDict()
        self._repeated: OrderedDict[_Identity, _Count] = OrderedDict()
        self._written: OrderedDict[_Identity, int] = OrderedDict()
        """Events that are there, with the count they show; least recently used first."""
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()

    def record(
        self,
        regarding: ObjectReference,
        type_: Literal["Normal", "Warning"],
        reason: str,
        message: str,
        *,
        component: str = "",
    ) -> None:
        """Never blocks, never raises. `ScheduleBindingSucceed` is spoken by component="default-scheduler"."""
        # The same object at another resourceVersion is the same object.
        regarding = msgspec.structs.replace(regarding, resource_version="")
        event = _Identity(component or self._component, regarding, type_, reason, message[:MESSAGE_LIMIT])
        now = self._clock.now()
        waiting = self._repeated if event in self._written else self._new
        count = waiting.get(event)
        if count is not None:
            count.count += 1
            count.last = now
        elif len(self._new) + len(self._repeated) >= self._capacity:
            self.dropped += 1
        else:
            waiting[event] = _Count(now, now)
            self._wake.set()

    async def flush(self) -> None:
        """Write what waits, each once, then return (a clean stop, tests). What fails is given up."""
        for waiting in (self._new, self._repeated):
            for _ in range(len(waiting)):
                await self._write_first(waiting)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_new())
            tasks.create_task(self._write_repeated())

    async def _write_new(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._new:
                failures = 0 if await self._write_first(self._new) else failures + 1
                if failures:
                    await self._clock.sleep(RETRY_BACKOFF.delay(failures, self._rng))

    async def _write_repeated(self) -> None:
        while True:
            await self._clock.sleep(self._quiet_seconds)
            for _ in range(len(self._repeated)):
                if not await self._write_first(self._repeated):
                    break

    async def _write_first(self, waiting: OrderedDict[_Identity, _Count]) -> bool:
        """False: the server is away or busy; the event waits on."""
        async with self._writing:
            if not waiting:
                return True
            event, count = waiting.popitem(last=False)
            try:
                await self._write(event, count)
            except asyncio.CancelledError:
                self._put_back(waiting, event, count)
                raise
            except ApiError as error:
                if isinstance(error, StatusError) and not isinstance(error, TooManyRequests) and not error.uncertain:
                    self.failed += 1
                    log.warning("event %s on %s: %s", event.reason, event.regarding.name, error)
                    return True
                self._put_back(waiting, event, count)
                return False
            return True

    def _put_back(self, waiting: OrderedDict[_Identity, _Count], event: _Identity, count: _Count) -> None:
        """First in line again, together with what was recorded meanwhile."""
        later = waiting.get(event)
        if later is not None:
            count = _Count(count.first, later.last, count.count + later.count)
        waiting[event] = count
        waiting.move_to_end(event, last=False)

    async def _write(self, event: _Identity, count: _Count) -> None:
        shown = self._written.get(event)
        if shown is None:
            shown = await self._create(event, count)
        if shown is not None:
            try:
                await self._patch(event, {"count": shown + count.count, "lastTimestamp": _time(count.last)})
                shown += count.count
            except NotFound:
                # Events expire (--event-ttl, 1 h).
                self._written.pop(event, None)
                shown = await self._create(event, count)
        self._written[event] = count.count if shown is None else shown
        self._written.move_to_end(event)
        if len(self._written) > self._remember:
            self._written.popitem(last=False)

    async def _create(self, event: _Identity, count: _Count) -> int | None:
        """None: made. Otherwise it was there (before our restart) and shows this count."""
        body = msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": event.name, "namespace": event.namespace},
                "involvedObject": event.regarding,
                "type": event.type,
                "reason": event.reason,
                "message": event.message,
                "source": {"component": event.component},
                "reportingComponent": event.component,
                "reportingInstance": self._instance,
                "firstTimestamp": _time(count.first),
                "lastTimestamp": _time(count.last),
                "count": count.count,
            }
        )
        try:
            await self._api.create(EVENTS, body, event.namespace, timeout=self._call_seconds)
        except AlreadyExists:
            # The answer to a patch tells the count; that way no right to read events is needed.
            answer = await self._patch(event, {"lastTimestamp": _time(count.last)})
            return msgspec.json.decode(answer, type=_Counted).count
        return None

    async def _patch(self, event: _Identity, fields: dict[str, object]) -> bytes:
        body = msgspec.json.encode(fields)
        return await self._api.patch(EVENTS, event.name, body, event.namespace, timeout=self._call_seconds)


class _Counted(msgspec.Struct):
    count: int = 1


def _time(moment: datetime) -> str:
    """metav1.Time has whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
