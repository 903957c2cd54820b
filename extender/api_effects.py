"""Effects that write to the API beside Bindings: status of reservations and PodGroups, wakes, evictions.

All of them may fail without harm: a status that lost a conflict is judged again on the newer object, waking is best
effort, evictions are asked for again by the core while pods remain.
"""

import asyncio
import logging
from collections.abc import Coroutine
from random import Random
from typing import Any

import msgspec

from extender.effects import EvictPods, PodRef, SetPodGroupStatus, SetReservationStatus, WakePods
from extender.logs import line
from kube.api.api import POD_GROUPS, PODS, RESERVATIONS, Api, Resource
from kube.api.backoff import Backoff
from kube.api.clock import Clock, rfc3339
from kube.api.errors import ApiError, Conflict, NotFound, StatusError, TooManyRequests

log = logging.getLogger(__name__)

WAKE_ANNOTATION = "muster.dev/wake"
"""On waiting pods: any update brings a refused pod back to kube-scheduler's queue (kubernetes#122019)."""

RETRY = Backoff(first=0.2, factor=2.0, cap=10.0)

_encode = msgspec.json.Encoder().encode

StatusEffect = SetReservationStatus | SetPodGroupStatus
_Key = tuple[str, str, str]


class StatusWrites:
    """At most one status PUT per object at a time; a newer wish for the same object replaces one that still waits.

    Tried again for as long as the API server is away: no watch event would bring the wish back.
    """

    def __init__(self, api: Api, clock: Clock, *, timeout: float, rng: Random | None = None) -> None:
        self._api = api
        self._clock = clock
        self._timeout = timeout
        self._rng = rng or Random()  # noqa: S311 - jitter
        self._waiting: dict[_Key, StatusEffect] = {}
        self._writing: set[_Key] = set()

    def submit(self, effect: StatusEffect) -> Coroutine[Any, Any, None] | None:
        """A coroutine to be run as a task, or None when one for this object is running already."""
        key = (_resource(effect).kind, effect.namespace, effect.name)
        self._waiting[key] = effect
        if key in self._writing:
            return None
        self._writing.add(key)
        return self._write_all(key)

    async def _write_all(self, key: _Key) -> None:
        try:
            failures = 0
            effect: StatusEffect | None = None
            while effect is not None or key in self._waiting:
                effect = self._waiting.pop(key, effect)
                assert effect is not None
                error = await self._write(effect)
                if error is None:
                    failures, effect = 0, None
                else:
                    failures += 1
                    retry_after = error.retry_after if isinstance(error, StatusError) else None
                    await self._clock.sleep(RETRY.delay(failures, self._rng, retry_after))
        finally:
            self._writing.discard(key)

    async def _write(self, effect: StatusEffect) -> ApiError | None:
        """None when there is nothing to try again."""
        resource = _resource(effect)
        body = _encode(
            {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "metadata": {
                    "name": effect.name,
                    "namespace": effect.namespace,
                    "resourceVersion": effect.resource_version,
                },
                "status": effect.status,
            }
        )
        try:
            await self._api.replace(
                resource, effect.name, body, effect.namespace, subresource="status", timeout=self._timeout
            )
        except (Conflict, NotFound):
            return None
        except StatusError as error:
            if error.uncertain or isinstance(error, TooManyRequests):
                return error
            log.warning(line("status refused", kind=resource.kind, name=effect.name, err=error))
            return None
        except ApiError as error:
            return error
        return None


class PodNudges:
    """Wakes and evictions, at most `concurrency` at once so that Bindings keep their connections."""

    def __init__(self, api: Api, clock: Clock, *, timeout: float, concurrency: int = 8) -> None:
        self._api = api
        self._clock = clock
        self._timeout = timeout
        self._turns = asyncio.Semaphore(concurrency)

    async def wake(self, effect: WakePods) -> None:
        value = rfc3339(self._clock.now())
        await asyncio.gather(*(self._wake(pod, value) for pod in effect.pods))

    async def evict(self, effect: EvictPods) -> None:
        log.info(line("evicting a gang whole", gang=effect.gang, pods=len(effect.pods), reason=effect.reason))
        await asyncio.gather(*(self._evict(pod) for pod in effect.pods))

    async def _wake(self, pod: PodRef, value: str) -> None:
        # With the uid: the API server refuses the patch of another pod that has the name by now.
        body = _encode({"metadata": {"uid": pod.uid, "annotations": {WAKE_ANNOTATION: value}}})
        async with self._turns:
            try:
                await self._api.patch(PODS, pod.name, body, pod.namespace, timeout=self._timeout)
            except ApiError as error:
                log.debug(line("wake failed", namespace=pod.namespace, pod=pod.name, err=error))

    async def _evict(self, pod: PodRef) -> None:
        body = _encode(
            {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod.name, "namespace": pod.namespace},
                "deleteOptions": {"preconditions": {"uid": pod.uid}},
            }
        )
        async with self._turns:
            try:
                await self._api.create(
                    PODS, body, pod.namespace, name=pod.name, subresource="eviction", timeout=self._timeout
                )
            except (NotFound, Conflict):
                return  # gone, or another pod of that name
            except ApiError as error:  # 429: a PodDisruptionBudget says not now
                log.warning(line("eviction failed", namespace=pod.namespace, pod=pod.name, err=error))


def _resource(effect: StatusEffect) -> Resource:
    return RESERVATIONS if isinstance(effect, SetReservationStatus) else POD_GROUPS
