"""ResourceQuota, core/v1: the limit of a namespace that pod creation will meet."""

from typing import Any

import msgspec

from kube.objects.meta import ObjectMeta


class ResourceQuotaSpec(msgspec.Struct, rename="camel"):
    hard: dict[str, str | int | float] | None = None
    scopes: list[str] | None = None
    scope_selector: dict[str, Any] | None = None


class ResourceQuotaStatus(msgspec.Struct):
    hard: dict[str, str | int | float] | None = None
    used: dict[str, str | int | float] | None = None


class ResourceQuota(msgspec.Struct):
    metadata: ObjectMeta
    spec: ResourceQuotaSpec = msgspec.field(default_factory=ResourceQuotaSpec)
    status: ResourceQuotaStatus = msgspec.field(default_factory=ResourceQuotaStatus)
