"""Which gang a pod belongs to, as labels and annotations say.

In this order:
1. `spec.schedulingGroup` (KEP-4671): native gang scheduling. Not ours, even if labelled: `gang_of` is None.
2. muster annotations hub-id, id, epoch: a gang of the hub. Its reservation is the truth about it.
3. label scheduling.x-k8s.io/pod-group (or pod-group.scheduling.sigs.k8s.io, before v0.19): a PodGroup object.
4. labels pod-group.scheduling.sigs.k8s.io/{name,min-available} (ACK): a gang without an object.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from kube.objects.meta import ObjectMeta
from kube.objects.names import (
    ACK_GANG_MIN_AVAILABLE,
    ACK_GANG_NAME,
    EPOCH,
    HUB_ID,
    JOB_ID,
    POD_GROUP,
    ROLE,
)
from kube.objects.pods import PodSpec

GangKey = tuple[str, str]
"""(namespace, name): a gang never spans namespaces."""
Source = Literal["hub", "pod-group", "labels"]

OLD_POD_GROUP = "pod-group.scheduling.sigs.k8s.io"
_ROLE_LABELS = (ROLE, "training.kubeflow.org/replica-type", "pytorch-replica-type", "replica-type")
_JOB_LABELS = ("training.kubeflow.org/job-name", "pytorch-job-name", "job-name")


class GangIdentity(msgspec.Struct, frozen=True):
    key: GangKey
    source: Source
    role: str = ""
    """Lower case, "master" or "worker" on pods of a training job; "" where nothing says."""
    min_available: int | None = None
    """From the ACK label; None: the PodGroup or the reservation says, or all pods the gang has."""
    hub_id: str = ""
    job_id: str = ""
    epoch: int = 0
    """0 on a hub's pod whose epoch is missing or no positive number: no reservation has it, so it is never admitted."""

    @property
    def from_hub(self) -> bool:
        return self.source == "hub"


def is_native_group(spec: PodSpec) -> bool:
    """The pod is scheduled as a gang by kube-scheduler itself: pass it through untouched."""
    return spec.scheduling_group is not None


def gang_of(metadata: ObjectMeta, spec: PodSpec) -> GangIdentity | None:
    """The gang of a pod; None for a plain pod and for one of a native group."""
    if is_native_group(spec):
        return None
    labels = metadata.labels or {}
    annotations = metadata.annotations or {}
    if HUB_ID in annotations:
        return GangIdentity(
            key=(metadata.namespace, _hub_gang_name(metadata, labels)),
            source="hub",
            role=_role(labels),
            min_available=_positive(labels.get(ACK_GANG_MIN_AVAILABLE, "")),
            hub_id=annotations[HUB_ID],
            job_id=annotations.get(JOB_ID, ""),
            epoch=_positive(annotations.get(EPOCH, "")) or 0,
        )
    if not labels:
        return None
    name = labels.get(POD_GROUP) or labels.get(OLD_POD_GROUP)
    if name:
        return GangIdentity((metadata.namespace, name), "pod-group", _role(labels))
    name = labels.get(ACK_GANG_NAME)
    if name:
        minimum = _positive(labels.get(ACK_GANG_MIN_AVAILABLE, ""))
        return GangIdentity((metadata.namespace, name), "labels", _role(labels), minimum)
    return None


def _hub_gang_name(metadata: ObjectMeta, labels: Mapping[str, str]) -> str:
    """Dispatch labels the pods with the PodGroup; without it (a webhook took it off), the job the pod is of."""
    for label in (POD_GROUP, OLD_POD_GROUP, ACK_GANG_NAME, *_JOB_LABELS):
        if labels.get(label):
            return labels[label]
    owners = [owner.name for owner in metadata.owner_references if owner.controller]
    return owners[0] if owners else metadata.name


def _role(labels: Mapping[str, str]) -> str:
    for label in _ROLE_LABELS:
        if labels.get(label):
            return labels[label].lower()
    return ""


def _positive(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        return None
    return int(text) or None
