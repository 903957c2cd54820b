"""An `Api` whose lists and watches follow a script, for reflector stories."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from kube.api.errors import ApiError, Gone, Unreachable


def obj(name, rv, uid="", namespace="ns", **fields):
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "resourceVersion": str(rv)}
    } | fields


def page(rv, *items, token=""):
    return msgspec.json.encode({"metadata": {"resourceVersion": str(rv), "continue": token}, "items": list(items)})


def line(type_, thing):
    return msgspec.json.encode({"type": type_, "object": thing})


def bookmark(rv):
    return line("BOOKMARK", {"metadata": {"resourceVersion": str(rv)}})


def expired():
    return line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})


HANG = object()
"""In a watch script: nothing comes any more until the watch is given up as Unreachable (after `hang_seconds`)."""
BREAK = object()
"""In a watch script: the connection breaks."""


class ScriptedApi:
    """lists: pages or errors, one per call, in order. watches: lists of lines, HANG, BREAK, or an error at opening.

    When the watches run out, the last one stays open for ever. `asked` records each call.
    """

    def __init__(self, lists, watches, hang_seconds=70.0):
        self.lists = list(lists)
        self.watches = list(watches)
        self.hang_seconds = hang_seconds
        self.asked = []
        self.exhausted = asyncio.Event()

    async def list(self, resource, namespace="", **query):
        self.asked.append(("list", query.get("continue_token", ""), query.get("limit")))
        answer = self.lists.pop(0)
        await asyncio.sleep(0.001)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    @asynccontextmanager
    async def watch(self, resource, namespace="", *, resource_version, **_) -> AsyncIterator[AsyncIterator[bytes]]:
        self.asked.append(("watch", resource_version))
        await asyncio.sleep(0.001)
        script = self.watches.pop(0) if self.watches else None
        if isinstance(script, ApiError):
            raise script
        yield self._lines(script)

    async def _lines(self, script):
        for step in script or ():
            if step is HANG:
                await asyncio.sleep(self.hang_seconds)
                raise Unreachable("silence")
            if step is BREAK:
                raise Unreachable("connection reset")
            yield step
        if script is None:
            self.exhausted.set()
            await asyncio.Event().wait()


__all__ = ["BREAK", "HANG", "Gone", "ScriptedApi", "bookmark", "expired", "line", "obj", "page"]
