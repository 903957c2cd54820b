"""MemberCluster, muster.dev/v1alpha1: a member as the hub knows it. Cluster-scoped on the hub.

The admin writes spec, the dispatcher writes status.
"""

import msgspec

from kube.objects.meta import Condition, ObjectMeta
from kube.objects.nodes import Taint


class SecretRef(msgspec.Struct):
    """Secret with key "kubeconfig" in namespace muster-system of the hub."""

    name: str


class MemberClusterSpec(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    kubeconfig_secret: SecretRef
    labels: dict[str, str] = {}
    """Matched by a policy's clusterAffinity, beside metadata.labels."""
    taints: list[Taint] = []
    unschedulable: bool = False
    """Cordoned: no new jobs."""
    create_namespaces: bool = True
    """False: a missing namespace makes this member no candidate, with that reason."""


class MemberClusterStatus(
    msgspec.Struct,
    rename={
        "conditions": "conditions",
        "cluster_uid": "clusterUID",
        "version": "version",
        "dialect": "dialect",
        "nodes": "nodes",
        "total": "total",
        "free": "free",
        "scheduler_name": "schedulerName",
    },
    omit_defaults=True,
    kw_only=True,
):
    conditions: list[Condition] = []
    """Ready (reachable, credentials good, extender heartbeat fresh) and CapacityFresh."""
    cluster_uid: str = ""
    version: str = ""
    dialect: str = ""
    """"training-operator" (spec.runPolicy) or "arena" (policy fields at spec level)."""
    nodes: int = 0
    total: dict[str, str] = {}
    free: dict[str, str] = {}
    scheduler_name: str = ""


class MemberCluster(msgspec.Struct, rename="camel", kw_only=True):
    api_version: str = "muster.dev/v1alpha1"
    kind: str = "MemberCluster"
    metadata: ObjectMeta
    spec: MemberClusterSpec
    status: MemberClusterStatus = msgspec.field(default_factory=MemberClusterStatus)
