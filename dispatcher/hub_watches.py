"""What the dispatcher watches on the hub, as one set of caches.

Users' objects are kept undecoded beyond their metadata (50,000 jobs as parsed trees would not fit); whoever needs
more asks `document`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from kube.api.api import (
    BINDINGS,
    MEMBER_CLUSTERS,
    NAMESPACES,
    POLICIES,
    PRIORITY_CLASSES,
    PYTORCH_JOBS,
    QUEUE_UNITS,
    QUEUES,
    QUOTA_TREES,
    SECRETS,
    Api,
    Resource,
)
from kube.api.clock import Clock
from kube.api.errors import ApiError
from kube.api.reflector import Reflector
from kube.objects.binding import ResourceBinding
from kube.objects.classes import PriorityClass
from kube.objects.member_cluster import MemberCluster
from kube.objects.meta import Json, ObjectMeta
from kube.objects.names import MUSTER_NAMESPACE, QUEUE_NAMESPACE

EMPTY = msgspec.Raw(b"null")


class Undecoded(msgspec.Struct):
    """Any object: metadata decoded, the rest as it came."""

    metadata: ObjectMeta
    spec: msgspec.Raw = EMPTY
    status: msgspec.Raw = EMPTY

    def document(self, resource: Resource) -> Json:
        """As a JSON document of its own. Metadata is what `ObjectMeta` keeps: never PUT this back."""
        found: Json = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": msgspec.to_builtins(self.metadata),
        }
        for field, raw in (("spec", self.spec), ("status", self.status)):
            if (value := parsed(raw)) is not None:
                found[field] = value
        return found


def parsed(raw: msgspec.Raw) -> Any:
    """None for an absent or null field."""
    return msgspec.json.decode(raw) if bytes(raw) else None


class MetadataOnly(msgspec.Struct):
    metadata: ObjectMeta


class Secret(msgspec.Struct):
    """Values are base64, as on the wire."""

    metadata: ObjectMeta
    data: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"Secret({self.metadata.namespace}/{self.metadata.name})"


class HubWatches:
    """`run()` belongs in a TaskGroup; wait for `synced()` before deciding anything."""

    def __init__(
        self, api: Api, clock: Clock, *, on_trouble: Callable[[Resource, ApiError | None], None] | None = None
    ) -> None:
        def reflector(resource: Resource, type_: Any, namespace: str = "") -> Any:
            return Reflector(api, resource, type_, clock, namespace=namespace, on_trouble=on_trouble)

        self.jobs: Reflector[Undecoded] = reflector(PYTORCH_JOBS, Undecoded)
        self.policies: Reflector[Undecoded] = reflector(POLICIES, Undecoded)
        self.bindings: Reflector[ResourceBinding] = reflector(BINDINGS, ResourceBinding)
        self.trees: Reflector[Undecoded] = reflector(QUOTA_TREES, Undecoded)
        self.queues: Reflector[Undecoded] = reflector(QUEUES, Undecoded, QUEUE_NAMESPACE)
        self.queue_units: Reflector[Undecoded] = reflector(QUEUE_UNITS, Undecoded)
        self.members: Reflector[MemberCluster] = reflector(MEMBER_CLUSTERS, MemberCluster)
        self.secrets: Reflector[Secret] = reflector(SECRETS, Secret, MUSTER_NAMESPACE)
        self.namespaces: Reflector[MetadataOnly] = reflector(NAMESPACES, MetadataOnly)
        self.priority_classes: Reflector[PriorityClass] = reflector(PRIORITY_CLASSES, PriorityClass)

    @property
    def all(self) -> tuple[Reflector[Any], ...]:
        return (
            self.jobs, self.policies, self.bindings, self.trees, self.queues, self.queue_units, self.members,
            self.secrets, self.namespaces, self.priority_classes,
        )  # fmt: skip

    async def synced(self) -> None:
        for reflector in self.all:
            await reflector.synced.wait()

    def unsynced(self) -> list[str]:
        """Plurals of what has not been listed yet, for /readyz."""
        return [r.resource.plural for r in self.all if not r.synced.is_set()]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for reflector in self.all:
                tasks.create_task(reflector.run())
