"""Object metadata and conditions as they travel (API JSON, camelCase)."""

from typing import Any

import msgspec


class OwnerReference(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The fields muster reads or writes; unknown ones are dropped, so never write back a decoded foreign object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] = []
    finalizers: list[str] = []

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        return (self.namespace, self.name)

    def annotation(self, name: str, default: str = "") -> str:
        return (self.annotations or {}).get(name, default)

    def label(self, name: str, default: str = "") -> str:
        return (self.labels or {}).get(name, default)


class Condition(msgspec.Struct, rename="camel", kw_only=True):
    """metav1.Condition. `reason` is CamelCase and never empty; times are RFC 3339."""

    type: str
    status: str
    reason: str
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


Json = dict[str, Any]
"""A JSON object as decoded, for documents muster passes through without owning their schema."""
