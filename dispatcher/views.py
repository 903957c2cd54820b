"""API objects -> the small views of `dispatcher.observations`."""

from dispatcher.documents import digits
from dispatcher.observations import CopyView, End, PodGroupView, ReservationView
from dispatcher.status_mirror import observe
from kube.objects.meta import Json, ObjectMeta
from kube.objects.names import EPOCH, HUB_ID, JOB_ID
from kube.objects.reservation import GangReservation


def reservation_view(reservation: GangReservation) -> ReservationView:
    spec, status = reservation.spec, reservation.status
    return ReservationView(
        uid=reservation.metadata.uid,
        resource_version=reservation.metadata.resource_version,
        epoch=spec.epoch,
        dispatched=spec.state == "Dispatched",
        state=status.state,
        reason=status.reason,
        message=status.message,
        pods_ended=status.pods_ended,
        claim=spec.claim,
        renewals=spec.renewals,
        deleting=reservation.metadata.deletion_timestamp is not None,
    )


def copy_view(metadata: ObjectMeta, status: Json | None, hub_id: str) -> CopyView:
    ours = metadata.annotation(HUB_ID) == hub_id
    seen = observe({"status": status or {}})
    end = None
    if seen.state in ("Succeeded", "Failed"):
        end = End(state=seen.state, message=seen.message, completion_time=seen.completion_time)
    return CopyView(
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        job_id=metadata.annotation(JOB_ID) if ours else "",
        epoch=epoch_of(metadata) if ours else 0,
        end=end,
        deleting=metadata.deletion_timestamp is not None,
    )


def pod_group_view(metadata: ObjectMeta) -> PodGroupView:
    return PodGroupView(
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        deleting=metadata.deletion_timestamp is not None,
    )


def epoch_of(metadata: ObjectMeta) -> int:
    """0 where the annotation is missing or was damaged by hand: older than every attempt."""
    return digits(metadata.annotation(EPOCH)) or 0


def is_of(metadata: ObjectMeta, hub_id: str, job_id: str) -> bool:
    return metadata.annotation(HUB_ID) == hub_id and metadata.annotation(JOB_ID) == job_id
