"""The list of cases and what they share.

A case is `async def case(api, namespace)`: an `Api` and an empty namespace of its own. It must hold on a real
kube-apiserver and on tests.simulation alike; where the two differ, the simulated one is wrong.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from kube.api.api import CONFIG_MAPS, CRDS, PODS, Api, Resource
from kube.api.errors import ApiError, NotFound

Case = Callable[[Api, str], Awaitable[None]]
CASES: list[Case] = []
NEED_CONTROLLERS: set[str] = set()
"""Cases that need kube-controller-manager (garbage collection, namespace deletion)."""

PATIENCE = 30.0
"""Seconds for something that must come."""

WIDGETS = Resource("contract.muster.dev", "v1", "widgets", "Widget")
"""A custom kind with a status subresource, made by `ensure_widgets`."""

WIDGET_CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.contract.muster.dev"},
    "spec": {
        "group": "contract.muster.dev",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}


def case(function: Case) -> Case:
    CASES.append(function)
    return function


def case_with_controllers(function: Case) -> Case:
    NEED_CONTROLLERS.add(function.__name__)
    return case(function)


def encode(doc: Any) -> bytes:
    return msgspec.json.encode(doc)


def decode(data: bytes) -> Any:
    return msgspec.json.decode(data)


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def widget(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": WIDGETS.api_version, "kind": "Widget", "metadata": {"name": name}, "spec": spec}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    """Without a ServiceAccount token; its scheduler does not exist, so nothing places it."""
    container = {"name": "main", "image": "example.com/none:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": False,
            "schedulerName": "nobody",
            "containers": [container],
        }
        | spec,
    }


def binding(name: str, node: str, uid: str = "") -> bytes:
    metadata = {"name": name} | ({"uid": uid} if uid else {})
    return encode(
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
    )


async def create(api: Api, resource: Resource, doc: dict[str, Any], namespace: str) -> Any:
    return decode(await api.create(resource, encode(doc), namespace))


async def ensure_widgets(api: Api) -> None:
    """Makes the CRD and waits until it is served."""
    try:
        await api.get(CRDS, WIDGET_CRD["metadata"]["name"])
    except NotFound:
        await api.create(CRDS, encode(WIDGET_CRD))

    async def served() -> bool:
        try:
            await api.list(WIDGETS, "default")
        except NotFound:
            return False
        return True

    await eventually(served)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come"
        await asyncio.sleep(0.05)


async def gone(api: Api, resource: Resource, name: str, namespace: str = "") -> bool:
    try:
        await api.get(resource, name, namespace)
    except NotFound:
        return True
    return False


class Seen:
    """Events of one watch, one after the other."""

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        self._lines = lines

    async def next(self) -> tuple[str, Any]:
        """(type, object); bookmarks are left out."""
        while True:
            async with asyncio.timeout(PATIENCE):
                event = decode(await anext(self._lines))
            if event["type"] != "BOOKMARK":
                return event["type"], event["object"]

    async def types(self, count: int) -> list[str]:
        return [(await self.next())[0] for _ in range(count)]


@asynccontextmanager
async def watching(api: Api, resource: Resource, namespace: str, version: str, **query: Any) -> AsyncIterator[Seen]:
    async with api.watch(resource, namespace, resource_version=version, **query) as lines:
        yield Seen(lines)


async def version_of(api: Api, resource: Resource, namespace: str) -> str:
    """Of an empty or full list: where a watch starts."""
    found: str = decode(await api.list(resource, namespace))["metadata"]["resourceVersion"]
    return found


async def names(api: Api, resource: Resource, namespace: str, **query: Any) -> list[str]:
    return [item["metadata"]["name"] for item in decode(await api.list(resource, namespace, **query))["items"]]


def refused(kind: type[ApiError], match: str | None = None) -> Any:
    return pytest.raises(kind, match=match)


__all__ = [
    "CASES",
    "CONFIG_MAPS",
    "PODS",
    "WIDGETS",
    "Seen",
    "binding",
    "case",
    "case_with_controllers",
    "config_map",
    "create",
    "decode",
    "encode",
    "ensure_widgets",
    "eventually",
    "gone",
    "names",
    "pod",
    "refused",
    "version_of",
    "watching",
    "widget",
]
