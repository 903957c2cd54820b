"""The seam between muster and an API server: bytes in, bytes out; decoding is the caller's.

Implementations: `kube.api.client.HttpApi` (real) and `tests.simulation` (in memory, virtual clock).
Every call takes `timeout` seconds (None: the implementation's default) and raises only `kube.api.errors.ApiError`.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec


class Resource(msgspec.Struct, frozen=True):
    """A REST resource. `group` is "" for core."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """URL path below the server. Without namespace: all namespaces, or a cluster-scoped resource."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/" + "/".join(parts)


class Api(Protocol):
    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        subresource: str = "",
        timeout: float | None = None,
    ) -> bytes: ...

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
        """One page of a List document."""
        ...

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
        """Lines of the watch stream ({"type","object"} documents), bookmarks asked for.

        Ends at the server's end of stream; raises Unreachable when nothing at all arrives for `timeout` seconds
        past the server-side timeout that the implementation asks for.
        """
        ...

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
        """POST. With name and subresource: pods/NAME/binding, pods/NAME/eviction, serviceaccounts/NAME/token."""
        ...

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
        """PUT; the body's metadata.resourceVersion is the precondition. Raises Conflict."""
        ...

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
        """JSON merge patch (RFC 7386)."""
        ...

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
        """Server-side apply with field manager `muster`."""
        ...

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
        """DELETE with preconditions where given. Raises Conflict if they do not hold, NotFound if it is gone."""
        ...

    async def read_path(self, path: str, *, accept: str = "application/json", timeout: float | None = None) -> bytes:
        """GET of a raw path: /version, /readyz, OpenAPI, discovery, server-side tables."""
        ...


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
EVENTS = Resource("", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
POD_GROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
QUEUES = Resource("scheduling.x-k8s.io", "v1alpha1", "queues", "Queue")
QUEUE_UNITS = Resource("scheduling.x-k8s.io", "v1alpha1", "queueunits", "QueueUnit")
QUOTA_TREES = Resource("scheduling.sigs.k8s.io", "v1beta1", "elasticquotatrees", "ElasticQuotaTree")
POLICIES = Resource("policy.one.alibabacloud.com", "v1alpha1", "propagationpolicies", "PropagationPolicy")
PYTORCH_JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
RESERVATIONS = Resource("muster.dev", "v1alpha1", "gangreservations", "GangReservation")
CAPACITIES = Resource("muster.dev", "v1alpha1", "clustercapacities", "ClusterCapacity", namespaced=False)
BINDINGS = Resource("muster.dev", "v1alpha1", "resourcebindings", "ResourceBinding")
MEMBER_CLUSTERS = Resource("muster.dev", "v1alpha1", "memberclusters", "MemberCluster", namespaced=False)
