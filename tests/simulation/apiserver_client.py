"""`SimulatedApi`: one client's `Api` on a simulated server, with its identity, its network and its faults."""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import msgspec

from kube.api.api import Resource
from kube.api.errors import ApiError, Unreachable
from tests.simulation.apiserver import ApiServer, Request
from tests.simulation.apiserver_faults import Fault, Faults
from tests.simulation.apiserver_rules import refuse
from tests.simulation.apiserver_store import Doc
from tests.simulation.apiserver_watch import Watcher

BOOKMARK_SECONDS = 60.0


class SimulatedApi:
    """Implements `kube.api.api.Api`; the limits are those of `HttpApi`."""

    def __init__(
        self,
        server: ApiServer,
        user: str = "admin",
        faults: Faults | None = None,
        *,
        call_seconds: float = 10.0,
        watch_seconds: float = 60.0,
        watch_grace_seconds: float = 10.0,
    ) -> None:
        self.server = server
        self.user = user
        self.faults = faults or Faults()
        self._call_seconds = call_seconds
        self._watch_seconds = watch_seconds
        self._grace = watch_grace_seconds
        self._network = "up"
        self._open: list[Watcher] = []

    # The client's fate --------------------------------------------------------------------------------------------

    def cut(self, *, silently: bool = False) -> None:
        """The network to the server goes: refused at once, or silently, so that only time tells."""
        self._network = "silent" if silently else "refused"
        for watcher in self._open:
            watcher.silent = silently
            if not silently:
                watcher.broken = True
            watcher.arrived.set()

    def heal(self) -> None:
        self._network = "up"
        for watcher in self._open:
            watcher.silent = False
            watcher.arrived.set()

    def kill(self) -> None:
        """This client's process is dead: what it still says (in its finally blocks) does nothing. For ever."""
        self.cut()
        self._network = "dead"

    def __repr__(self) -> str:
        return f"SimulatedApi({self.user} at {self.server.name})"

    # Api ----------------------------------------------------------------------------------------------------------

    async def get(
        self, resource: Resource, name: str, namespace: str = "", *, subresource: str = "", timeout: float | None = None
    ) -> bytes:
        request = self._request("get", resource, namespace, name, subresource)
        return await self._call(request, lambda: self.server.get(resource, name, namespace), timeout)

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
        def step() -> bytes:
            return self.server.list(resource, namespace, label_selector, field_selector, limit, continue_token)

        return await self._call(self._request("list", resource, namespace), step, timeout)

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
        request = self._request("create", resource, namespace, name, subresource)
        return await self._write(
            request, body, lambda doc: self.server.create(resource, doc, namespace, name, subresource), timeout
        )

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
        request = self._request("update", resource, namespace, name, subresource)
        return await self._write(
            request, body, lambda doc: self.server.replace(resource, name, doc, namespace, subresource), timeout
        )

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
        request = self._request("patch", resource, namespace, name, subresource)
        return await self._write(
            request, body, lambda doc: self.server.patch(resource, name, doc, namespace, subresource), timeout
        )

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
        assert force, "the simulated server resolves no conflicts between field managers"
        request = self._request("patch", resource, namespace, name, subresource)
        return await self._write(
            request, body, lambda doc: self.server.apply(resource, name, doc, namespace, subresource), timeout
        )

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
        def step() -> bytes:
            return self.server.delete(
                resource,
                name,
                namespace,
                uid=uid,
                version=resource_version,
                propagation=propagation,
                grace=grace_seconds,
            )

        return await self._call(self._request("delete", resource, namespace, name), step, timeout)

    async def read_path(self, path: str, *, accept: str = "application/json", timeout: float | None = None) -> bytes:
        def step() -> bytes:
            if path == "/version":
                return b'{"major":"1","minor":"36","gitVersion":"v1.36.3"}'
            if path in ("/readyz", "/healthz", "/livez"):
                return b"ok"
            raise refuse(404, "NotFound", "the server could not find the requested resource")

        return await self._call(Request(self.user, "get", "", path, "", ""), step, timeout)

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
        grace = self._grace if timeout is None else timeout
        return self._watching(resource, namespace, resource_version, label_selector, field_selector, grace)

    # How ----------------------------------------------------------------------------------------------------------

    def _request(self, verb: str, resource: Resource, namespace: str, name: str = "", subresource: str = "") -> Request:
        what = f"{resource.plural}/{subresource}" if subresource else resource.plural
        return Request(self.user, verb, resource.group, what, namespace, name)

    async def _write(self, request: Request, body: bytes, step: Callable[[Doc], bytes], timeout: float | None) -> bytes:
        def decoded() -> bytes:
            try:
                doc = msgspec.json.decode(body, type=dict)
            except msgspec.DecodeError as error:
                raise refuse(400, "BadRequest", f"not JSON: {error}") from error
            return step(doc)

        return await self._call(request, decoded, timeout)

    async def _call(self, request: Request, step: Callable[[], bytes], timeout: float | None) -> bytes:
        seconds = self._call_seconds if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(request, step, seconds)
        except TimeoutError as error:
            raise Unreachable(f"{request.verb} {request.resource}: no answer within {seconds:g} s") from error

    async def _exchange(self, request: Request, step: Callable[[], bytes], seconds: float) -> bytes:
        fault = self.faults.draw(request)
        await self._travel(request, step, fault)
        if fault is Fault.HANG:
            await asyncio.Event().wait()
        if fault is Fault.LATE:
            self._later(seconds + self.faults.rng.random() * self.faults.late_seconds, request, step)
            await asyncio.Event().wait()
        if fault is Fault.BUSY:
            raise _with_retry_after(refuse(429, "TooManyRequests", "too many requests, please try again later"))
        if fault is Fault.ERROR:
            raise refuse(500, "InternalError", "etcdserver: leader changed")
        answer = self._handle(request, step)
        if fault is Fault.LOST:
            raise Unreachable(f"{request.verb} {request.resource}: connection reset")
        if fault is Fault.ERROR_DONE:
            raise refuse(504, "Timeout", "request timed out")
        await asyncio.sleep(self.faults.one_way())
        if fault is Fault.SLOW:
            await asyncio.sleep(self.faults.rng.random() * 2 * seconds)
        if self._network != "up":
            await self._no_network(request)
        return answer

    async def _travel(self, request: Request, step: Callable[[], bytes], fault: Fault | None) -> None:
        """To the server. A caller that goes away meanwhile does not take its request back."""
        if self._network != "up" or fault is Fault.REFUSED:
            await asyncio.sleep(0)
            await self._no_network(request)
        delay = self.faults.one_way()
        try:
            await asyncio.sleep(delay)
            if self.server.stopped:
                await self.server.goes_on.wait()
        except asyncio.CancelledError:
            if self.server.stopped or (self._network != "dead" and self.faults.rng.random() < 0.5):
                self._later(delay, request, step)
            raise
        if not self.server.available:
            raise Unreachable(f"{request.verb} {request.resource}: connection refused")

    async def _no_network(self, request: Request) -> None:
        if self._network == "silent":
            await asyncio.Event().wait()
        raise Unreachable(f"{request.verb} {request.resource}: no route to host")

    def _handle(self, request: Request, step: Callable[[], bytes]) -> bytes:
        """The server's part, atomic."""
        try:
            self.server.check_allowed(request)
            answer = step()
        except ApiError as error:
            self.server.record(request, type(error).__name__)
            raise
        self.server.record(request, "ok")
        return answer

    def _later(self, delay: float, request: Request, step: Callable[[], bytes]) -> None:
        def arrive() -> None:
            if self.server.stopped:
                self.server.backlog.append(arrive)
                return
            if self.server.available:
                try:
                    self._handle(request, step)
                except ApiError:
                    return  # nobody is there to be told; it is in the audit log

        asyncio.get_running_loop().call_later(delay, arrive)

    @asynccontextmanager
    async def _watching(
        self, resource: Resource, namespace: str, version: str, labels: str, fields: str, grace: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        opened: list[Watcher] = []

        def step() -> bytes:
            opened.append(self.server.watch(resource, namespace, version, labels, fields))
            return b""

        await self._call(self._request("watch", resource, namespace), step, None)
        watcher = opened[0]
        self._open.append(watcher)
        try:
            async with aclosing(self._lines(watcher, resource, grace)) as lines:
                yield lines
        finally:
            self._open.remove(watcher)
            self.server.forget(watcher)

    async def _lines(self, watcher: Watcher, resource: Resource, grace: float) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        lives = self._watch_seconds * self.faults.rng.uniform(0.8, 1.2)
        ends = loop.time() + lives
        bookmark = loop.time() + BOOKMARK_SECONDS
        cut_after = self.faults.watch_lives()
        cut = math.inf if cut_after is None else loop.time() + cut_after
        heard = loop.time()
        while True:
            silent = watcher.silent or self.server.stopped
            until = heard + lives + grace if silent else min(ends, bookmark, cut)
            try:
                async with asyncio.timeout_at(until):
                    await watcher.arrived.wait()
                    watcher.arrived.clear()
            except TimeoutError:
                if silent:
                    raise Unreachable(f"watch {resource.plural}: silence") from None
                if loop.time() >= cut:
                    if self.faults.rng.random() < 0.5:
                        return
                    raise Unreachable(f"watch {resource.plural}: connection reset") from None
                self.server.bookmark(watcher, resource)
                bookmark = loop.time() + BOOKMARK_SECONDS
            if watcher.broken:
                raise Unreachable(f"watch {resource.plural}: connection reset")
            if watcher.silent or self.server.stopped:
                continue
            if watcher.lines:
                await asyncio.sleep(self.faults.lag())
                heard = loop.time()
            while watcher.lines and not watcher.broken and not watcher.silent:
                yield watcher.lines.popleft()
            if loop.time() >= ends or watcher.ended:
                return


def _with_retry_after(error: Exception) -> Exception:
    error.retry_after = 1.0  # type: ignore[attr-defined]
    return error
