"""Doubles for tests of the extender's shells: a clock that is moved by hand, an API server that is scripted."""

import asyncio
import heapq
import itertools
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

from kube.api.api import Resource
from kube.api.errors import AlreadyExists, Conflict, NotFound

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """Stands still until `advance`. Sleepers wake in order of their time."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self._now

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._now)

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        await woken.wait()

    def jump(self, seconds: float) -> None:
        """Time passes while the process is stopped: nobody runs in between."""
        self._now += seconds

    async def advance(self, seconds: float) -> None:
        """Time passes; everything that becomes due runs at its time."""
        end = self._now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, woken = heapq.heappop(self._sleepers)
            self._now = max(self._now, due)
            woken.set()
            await settle()
        self._now = max(self._now, end)
        await settle()


async def settle(turns: int = 20) -> None:
    """Lets everything run that can run without time or I/O."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Waits in real time for a condition that real I/O brings about."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)


class Call:
    """One call at the scripted API server."""

    def __init__(self, verb: str, resource: Resource, namespace: str, name: str, subresource: str, body: bytes) -> None:
        self.verb = verb
        self.resource = resource
        self.namespace = namespace
        self.name = name
        self.subresource = subresource
        self.body: Any = json.loads(body) if body else None

    @property
    def target(self) -> str:
        """`create pods/binding ns/p`."""
        path = self.resource.plural + (f"/{self.subresource}" if self.subresource else "")
        return f"{self.verb} {path} {self.namespace}/{self.name}"


Answer = bytes | Exception | Callable[[Call], Awaitable[bytes]]


class ScriptedApi:
    """Objects in a dictionary, and answers that a test puts in the way of single calls.

    `answers["create pods/binding ns/p"]` is a queue of answers for that call; with none left the call works.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answers: dict[str, list[Answer]] = defaultdict(list)
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._version = itertools.count(100)

    def put(self, resource: Resource, document: dict[str, Any]) -> dict[str, Any]:
        meta = document["metadata"]
        meta["resourceVersion"] = str(next(self._version))
        self.objects[(resource.kind, meta.get("namespace", ""), meta["name"])] = document
        return document

    def targets(self, part: str = "") -> list[str]:
        return [call.target for call in self.calls if part in call.target]

    async def get(
        self, resource: Resource, name: str, namespace: str = "", *, subresource: str = "", timeout: float | None = None
    ) -> bytes:
        scripted, call = await self._scripted("get", resource, namespace, name, subresource, b"")
        return scripted if scripted is not None else _bytes(self._find(call))

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        timeout: float | None = None,
    ) -> bytes:
        scripted, _ = await self._scripted("list", resource, namespace, "", "", b"")
        if scripted is not None:
            return scripted
        items = [o for (kind, ns, _), o in self.objects.items() if kind == resource.kind and namespace in ("", ns)]
        return _bytes({"metadata": {"resourceVersion": str(next(self._version))}, "items": items})

    def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout: float | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return _SilentWatch()

    async def create(
        self,
        resource: Resource,
        body: bytes,
        namespace: str = "",
        *,
        name: str = "",
        subresource: str = "",
        timeout: float | None = None,
    ) -> bytes:
        scripted, call = await self._scripted("create", resource, namespace, name, subresource, body)
        if scripted is not None:
            return scripted
        if subresource:
            return b"{}"
        key = (resource.kind, namespace, call.body["metadata"]["name"])
        if key in self.objects:
            raise AlreadyExists(409, "AlreadyExists", "it is there")
        return _bytes(self.put(resource, call.body))

    async def replace(
        self,
        resource: Resource,
        name: str,
        body: bytes,
        namespace: str = "",
        *,
        subresource: str = "",
        timeout: float | None = None,
    ) -> bytes:
        scripted, call = await self._scripted("replace", resource, namespace, name, subresource, body)
        if scripted is not None:
            return scripted
        there = self._find(call)
        wanted = call.body["metadata"].get("resourceVersion", "")
        if wanted and wanted != there["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "the object has been modified")
        if subresource:
            return _bytes(self.put(resource, there | {subresource: call.body[subresource]}))
        return _bytes(self.put(resource, call.body))

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: bytes,
        namespace: str = "",
        *,
        subresource: str = "",
        timeout: float | None = None,
    ) -> bytes:
        scripted, _ = await self._scripted("patch", resource, namespace, name, subresource, body)
        return scripted if scripted is not None else b"{}"

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: bytes,
        namespace: str = "",
        *,
        subresource: str = "",
        force: bool = True,
        timeout: float | None = None,
    ) -> bytes:
        raise AssertionError("the extender applies nothing")

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "Background",
        grace_seconds: int | None = None,
        timeout: float | None = None,
    ) -> bytes:
        raise AssertionError("the extender deletes nothing")

    async def read_path(self, path: str, *, accept: str = "application/json", timeout: float | None = None) -> bytes:
        raise AssertionError("the extender reads no raw path")

    def _find(self, call: Call) -> dict[str, Any]:
        try:
            return self.objects[(call.resource.kind, call.namespace, call.name)]
        except KeyError:
            raise NotFound(404, "NotFound", f"{call.name} not found") from None

    async def _scripted(
        self, verb: str, resource: Resource, namespace: str, name: str, subresource: str, body: bytes
    ) -> tuple[bytes | None, Call]:
        call = Call(verb, resource, namespace, name, subresource, body)
        self.calls.append(call)
        queue = self.answers.get(call.target)
        if not queue:
            return None, call
        answer = queue.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else await answer(call), call


class _SilentWatch(AbstractAsyncContextManager[AsyncIterator[bytes]]):
    """A watch that stays open and never says anything."""

    async def __aenter__(self) -> AsyncIterator[bytes]:
        return self._lines()

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def _lines(self) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""


def _bytes(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()
