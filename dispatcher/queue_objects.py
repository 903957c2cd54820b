"""Keeps the Queue objects in kube-queue as the quota tree wants them, and takes users' settings from them."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from dispatcher.hub_watches import HubWatches, parsed
from dispatcher.queue_names import queue_name
from dispatcher.queueing import QueueSettings, Waiting, hand_made_key
from dispatcher.queues import is_ours, queue_changes, queue_items, settings_by_path
from dispatcher.readings import Readings
from kube.api.api import QUEUES, QUOTA_TREES, Api
from kube.api.clock import Clock
from kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from kube.objects.meta import Json
from kube.objects.names import QUEUE_NAMESPACE

log = logging.getLogger(__name__)

Path = tuple[str, ...]


class QueueObjects:
    """`run()` belongs in a TaskGroup. positions(path): the queue's waiting jobs in order. configure: takes settings.
    tree_status(): of the tree in force, for its object."""

    def __init__(
        self,
        hub: Api,
        watches: HubWatches,
        readings: Readings,
        clock: Clock,
        *,
        every_seconds: float,
        call_seconds: float,
        positions: Callable[[Path], list[Waiting]],
        configure: Callable[[Path, QueueSettings], None],
        tree_status: Callable[[], Json | None],
    ) -> None:
        self._hub = hub
        self._watches = watches
        self._readings = readings
        self._clock = clock
        self._every = every_seconds
        self._call_seconds = call_seconds
        self._positions = positions
        self._configure = configure
        self._tree_status = tree_status
        self._configured: set[Path] = set()
        self._dirty = asyncio.Event()
        watches.queues.subscribe(lambda *_: self.touch())

    def touch(self) -> None:
        """The tree or the objects changed. Settings are in force when this returns: nothing is admitted without."""
        self._dirty.set()
        if not self._watches.queues.synced.is_set():
            return
        settings = settings_by_path(self._readings.tree, self._documents())
        for path in self._configured - settings.keys():
            self._configure(path, QueueSettings())
        for path, each in settings.items():
            self._configure(path, each)
        self._configured = set(settings)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_tree())
            tasks.create_task(self._show_items())

    async def _follow_tree(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._sync()
            except ApiError as error:
                log.info("queues not written: %s", error)
                await self._clock.sleep(self._every)
                self._dirty.set()

    def _documents(self) -> list[Json]:
        return [queue.document(QUEUES) for queue in self._watches.queues]

    async def _sync(self) -> None:
        changes = queue_changes(self._readings.tree, self._documents())
        for warning in changes.warnings:
            log.warning("%s", warning)
        for queue in changes.create:
            try:
                body = msgspec.json.encode(queue)
                await self._hub.create(QUEUES, body, QUEUE_NAMESPACE, timeout=self._call_seconds)
            except AlreadyExists:
                continue
        for queue in changes.update:
            try:
                await self._hub.replace(
                    QUEUES, queue["metadata"]["name"], msgspec.json.encode(queue), QUEUE_NAMESPACE,
                    timeout=self._call_seconds,
                )  # fmt: skip
            except (Conflict, NotFound):
                continue  # the watch brings the newer one
        for name, uid in changes.delete:
            try:
                await self._hub.delete(QUEUES, name, QUEUE_NAMESPACE, uid=uid, timeout=self._call_seconds)
            except (Conflict, NotFound):
                continue

    async def _show_tree(self) -> None:
        source, root = self._readings.tree_state.source, self._tree_status()
        tree = self._watches.trees.get(*source) if source else None
        before = ((parsed(tree.status) if tree is not None else None) or {}).get("root") or {}
        if tree is None or root is None or before == root:
            return
        for field in ("used", "request"):  # in a merge patch only null removes a key
            root[field] = {**dict.fromkeys(before.get(field) or {}), **root[field]}
        body = msgspec.json.encode({"status": {"root": root}})
        meta = tree.metadata
        try:
            await self._hub.patch(
                QUOTA_TREES, meta.name, body, meta.namespace, subresource="status", timeout=self._call_seconds
            )
        except NotFound:
            return
        except ApiError as error:
            log.info("status of the quota tree not written: %s", error)

    async def _show_items(self) -> None:
        while True:
            await self._clock.sleep(self._every)
            await self._show_tree()
            shown = [(path, queue_name(path)) for path in self._readings.tree.nodes]
            shown += [
                (hand_made_key(queue.metadata.name), queue.metadata.name)
                for queue in self._watches.queues
                if not is_ours(queue.document(QUEUES))
            ]
            for path, name in shown:
                queue = self._watches.queues.get(QUEUE_NAMESPACE, name)
                if queue is None:
                    continue
                items = queue_items(self._positions(path))
                before = parsed(queue.status) or {}
                if before.get("queueItemDetails", {"active": []}) == items:
                    continue
                body = msgspec.json.encode({"status": {"queueItemDetails": items}})
                try:
                    await self._hub.patch(
                        QUEUES, queue.metadata.name, body, QUEUE_NAMESPACE, subresource="status",
                        timeout=self._call_seconds,
                    )  # fmt: skip
                except NotFound:
                    continue
                except ApiError as error:
                    log.info("items of queue %s not written: %s", queue.metadata.name, error)
