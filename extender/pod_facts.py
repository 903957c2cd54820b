"""What the core remembers of a pod, by UID; made from what the watch or a request showed."""

from collections.abc import Iterable, Mapping

import msgspec

from extender.effects import PodRef
from kube.objects.gang_identity import GangIdentity, gang_of, is_native_group
from kube.objects.pod_class import PodClass, pod_class
from kube.objects.pod_requests import pod_request
from kube.objects.pods import Pod
from kube.objects.reservation import reservation_name
from kube.objects.resources import Resources


class PodFacts(msgspec.Struct):
    ref: PodRef
    pod_class: PodClass
    request: Resources
    """What it takes on its node, "pods" included: that of the class unless it was resized in place."""
    labels: Mapping[str, str]
    identity: GangIdentity | None
    node: str = ""
    nominated: str = ""
    finished: bool = False
    succeeded: bool = False
    running: bool = False
    """status.phase is Running."""
    terminating: bool = False
    unschedulable: str = ""
    """What kube-scheduler last said of it; it may have come from its own filters alone, without a question to us."""
    gated: bool = False
    native: bool = False
    """spec.schedulingGroup: passed through untouched."""
    daemon: bool = False
    """Owned by a DaemonSet."""
    confirmed: bool = False
    """The watch has shown it."""
    created: str = ""
    pod: Pod | None = None
    """Kept while it is not bound: its class is made anew when rules of siblings change."""

    @property
    def priority(self) -> int:
        return self.pod_class.priority

    @property
    def gang(self) -> str:
        return gang_key(self.identity) if self.identity is not None else ""


def facts_of(pod: Pod, label_keys: Iterable[str] = ()) -> PodFacts:
    """Raises PodTemplateError or QuantityError for a spec that no API server would have let through."""
    meta = pod.metadata
    labels = meta.labels or {}
    own_class = pod_class(meta.namespace, labels, pod.spec, label_keys=label_keys)
    bound = pod.spec.node_name != ""
    request = own_class.charge
    if bound and not pod.finished:
        request = {**pod_request(pod.spec, pod.status), "pods": 1}
        if request == own_class.charge:
            request = own_class.charge
    return PodFacts(
        ref=PodRef(meta.namespace, meta.name, meta.uid),
        pod_class=own_class,
        request=request,
        labels=labels,
        identity=gang_of(meta, pod.spec),
        node=pod.spec.node_name,
        nominated="" if bound else pod.status.nominated_node_name,
        finished=pod.finished,
        succeeded=pod.status.phase == "Succeeded",
        running=pod.status.phase == "Running",
        terminating=meta.deletion_timestamp is not None,
        unschedulable=found_unschedulable(pod),
        gated=bool(pod.spec.scheduling_gates),
        native=is_native_group(pod.spec),
        daemon=any(owner.controller and owner.kind == "DaemonSet" for owner in meta.owner_references),
        created=meta.creation_timestamp or "",
        pod=None if bound else pod,
    )


def found_unschedulable(pod: Pod) -> str:
    """The message of PodScheduled with reason Unschedulable; "" after an error, which says nothing about room."""
    for each in pod.status.conditions or ():
        if each.type == "PodScheduled" and each.status == "False" and each.reason == "Unschedulable":
            return each.message or each.reason
    return ""


def gang_key(identity: GangIdentity) -> str:
    """`hub:<reservation name>` or `<namespace>/<name>`: every epoch of a hub's job is a gang of its own."""
    if identity.from_hub:
        return hub_gang_key(identity.job_id, identity.epoch)
    return f"{identity.key[0]}/{identity.key[1]}"


def hub_gang_key(job_id: str, epoch: int) -> str:
    return f"hub:{reservation_name(job_id, epoch)}"
