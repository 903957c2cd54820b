"""PodGroup, scheduling.x-k8s.io/v1alpha1 (kubernetes-sigs/scheduler-plugins)."""

import msgspec

from kube.objects.meta import ObjectMeta


class PodGroupSpec(msgspec.Struct, rename="camel", omit_defaults=True):
    min_member: int = 0
    """0 when absent; a gang without a minimum needs all pods it has, at least one."""
    schedule_timeout_seconds: int | None = None
    min_resources: dict[str, str | int | float] | None = None


class PodGroupStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    phase: str = ""
    """"", Pending, Scheduling, Running, Finished, Failed."""
    scheduled: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    occupied_by: str = ""
    schedule_start_time: str | None = None


class PodGroup(msgspec.Struct, rename="camel", kw_only=True):
    api_version: str = "scheduling.x-k8s.io/v1alpha1"
    kind: str = "PodGroup"
    metadata: ObjectMeta
    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)
    status: PodGroupStatus = msgspec.field(default_factory=PodGroupStatus)
