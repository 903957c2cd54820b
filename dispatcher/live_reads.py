"""One attempt in one member, read past every cache: what alone may prove that something is gone (rule 6)."""

import msgspec

from dispatcher.member_caches import CopySeen, PodSeen
from dispatcher.observations import CopyView, MemberView, PodGroupView, ReservationView
from dispatcher.views import copy_view, is_of, pod_group_view, reservation_view
from kube.api.api import POD_GROUPS, PODS, PYTORCH_JOBS, RESERVATIONS, Api, Resource
from kube.api.documents import Page
from kube.api.errors import NotFound
from kube.objects.meta import ObjectMeta
from kube.objects.names import MANAGED, MUSTER_NAMESPACE
from kube.objects.reservation import GangReservation, reservation_name

POD_PAGE = 500


class Subject(msgspec.Struct, frozen=True):
    """One attempt of one job."""

    hub_id: str
    job_id: str
    epoch: int
    namespace: str
    name: str


class _Metadata(msgspec.Struct):
    metadata: ObjectMeta


async def read_live(api: Api, base: MemberView, subject: Subject, *, timeout: float) -> MemberView:
    """`base` with reservation, copy, PodGroup and pods as they are now, read in this order. Raises ApiError: then
    nothing is known."""
    reservation = await read_reservation(api, subject, timeout=timeout)
    copy = await read_copy(api, subject, timeout=timeout)
    pod_group = await _pod_group(api, subject, timeout=timeout)
    pods, running = await _pods(api, subject, timeout=timeout)
    return msgspec.structs.replace(
        base, live=True, reservation=reservation, copy=copy, pod_group=pod_group, pods=pods, pods_running=running
    )


async def read_reservation(api: Api, subject: Subject, *, timeout: float) -> ReservationView | None:
    name = reservation_name(subject.job_id, subject.epoch)
    body = await _get(api, RESERVATIONS, name, MUSTER_NAMESPACE, timeout=timeout)
    return reservation_view(msgspec.json.decode(body, type=GangReservation)) if body else None


async def read_copy(api: Api, subject: Subject, *, timeout: float) -> CopyView | None:
    """The job of this name, ours or not."""
    body = await _get(api, PYTORCH_JOBS, subject.name, subject.namespace, timeout=timeout)
    if body is None:
        return None
    seen = msgspec.json.decode(body, type=CopySeen)
    return copy_view(seen.metadata, seen.status, subject.hub_id)


async def _pod_group(api: Api, subject: Subject, *, timeout: float) -> PodGroupView | None:
    try:
        body = await api.get(POD_GROUPS, subject.name, subject.namespace, timeout=timeout)
    except NotFound:
        return None  # or the member has no such kind: then there is none to remove either
    metadata = msgspec.json.decode(body, type=_Metadata).metadata
    return pod_group_view(metadata) if is_of(metadata, subject.hub_id, subject.job_id) else None


async def _pods(api: Api, subject: Subject, *, timeout: float) -> tuple[int, int]:
    count = running = 0
    token = ""
    while True:
        body = await api.list(
            PODS,
            subject.namespace,
            label_selector=f"{MANAGED}=true",
            limit=POD_PAGE,
            continue_token=token,
            timeout=timeout,
        )
        page = msgspec.json.decode(body, type=Page[PodSeen])
        for pod in page.items or ():
            if is_of(pod.metadata, subject.hub_id, subject.job_id):
                count += 1
                running += pod.may_run
        token = page.metadata.continue_token
        if not token:
            return count, running


async def _get(api: Api, resource: Resource, name: str, namespace: str, *, timeout: float) -> bytes | None:
    """None only if the server says that this *object* is not there. A 404 because its kind is not served proves
    nothing (karmada#5406)."""
    try:
        return await api.get(resource, name, namespace, timeout=timeout)
    except NotFound as error:
        if error.reason != "NotFound":
            raise
        return None
