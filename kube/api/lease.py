"""The Lease object (coordination.k8s.io/v1) and how it is read and written."""

import msgspec

from kube.api import writes
from kube.api.api import LEASES, Api
from kube.objects.meta import ObjectMeta


class LeaseSpec(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Times are RFC 3339 with microseconds, for people: nobody compares them with a clock."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, rename="camel", kw_only=True):
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"
    metadata: ObjectMeta
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)

    @property
    def holder(self) -> str:
        return self.spec.holder_identity or ""

    @property
    def seconds(self) -> int:
        """How long the holder keeps it after a renewal."""
        return self.spec.lease_duration_seconds or 0


async def read_lease(api: Api, name: str, namespace: str, timeout: float) -> Lease | None:
    return await writes.read(api, LEASES, Lease, name, namespace, timeout=timeout)


async def write_lease(api: Api, lease: Lease, timeout: float) -> Lease:
    """POST without a resourceVersion, PUT with one. Raises AlreadyExists, Conflict, NotFound, ApiError."""
    if lease.metadata.resource_version:
        return await writes.replace(api, LEASES, lease, timeout=timeout)
    made = await api.create(LEASES, msgspec.json.encode(lease), lease.metadata.namespace, timeout=timeout)
    return msgspec.json.decode(made, type=Lease)
