"""MemberCluster, muster.dev/v1alpha1: a member as the hub knows it. Cluster-scoped on the hub.

The admin writes spec, the dispatcher writes status.
"""

import msgspec

from kube.objects.meta import Condition, ObjectMeta
from kube.objects.nodes import Taint


class SecretRef(msgspec.Struct):
    """Secret with key "kubeconfig" in namespace muster-system of the hub."""

    name: str


class SelfFencing(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, kw_only=True):
    """Opt-in (rule 16): the member gives its gangs up by itself when it hears nothing of the hub."""

    seconds: int
    """After so long without an echo of its own heartbeat the extender evicts every hub-owned gang."""
    margin_seconds: int = 60
    """The hub re-places what ran there `seconds` + this after its last renewal, at the earliest."""


class MemberClusterSpec(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    kubeconfig_secret: SecretRef
    labels: dict[str, str] = {}
    """Matched by a policy's clusterAffinity, beside metadata.labels."""
    taints: list[Taint] = []
    unschedulable: bool = False
    """Cordoned: no new jobs."""
    create_namespaces: bool = True
    """False: a missing namespace makes this member no candidate, with that reason."""
    fenced: bool = False
    """The admin's promise that its nodes stay off (rule 15). The dispatcher takes it back once the member answers and
    nothing stale of ours is left in it."""
    accepted_cluster_uid: str = msgspec.field(default="", name="acceptedClusterUID")
    """uid of the kube-system namespace of the cluster that the admin accepts under this name (rule 17). "": the one in
    status.clusterUID, which is the first that answered."""
    self_fencing: SelfFencing | None = None


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
