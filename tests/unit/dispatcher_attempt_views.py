"""Bindings and views of one job, "job-x" in member "c1", for tests of the crash table."""

from datetime import UTC, datetime
from typing import Any

from dispatcher.attempts import Limits, next_step
from dispatcher.observations import CopyView, End, HubJobView, MemberView, ReservationView, View
from dispatcher.steps import Record, Step
from kube.objects.binding import Attempt, BindingSpec, Charge, Component, JobRef

NOW = datetime(2026, 8, 1, 12, 0, 0, tzinfo=UTC)
ID = "job-x"
CHARGE = Charge(path=["root"], amounts={"cpu": "1"})
COMPONENTS = [Component(name="worker", replicas=2, min_replicas=2)]
LIMITS = Limits(answer_seconds=30, silence_seconds=15, renew_seconds=20)


def job(**fields: Any) -> HubJobView:
    whole: dict[str, Any] = {"uid": "u1", "job_id": ID, "finalizer": True, "policy": "p"} | fields
    return HubJobView(**whole)


def spec(state: str = "", *, epoch: int = 1, **fields: Any) -> BindingSpec:
    attempt = None
    if state:
        then = fields.pop("then", "")
        attempt = Attempt(cluster="c1", cluster_uid="k1", epoch=epoch, state=state, then=then)  # type: ignore[arg-type]
        fields.setdefault("charge", CHARGE)
    fields.setdefault("last_epoch", epoch if state else 0)
    return BindingSpec(
        hub_id="h",
        job_id=ID,
        job=JobRef(api_version="kubeflow.org/v1", kind="PyTorchJob", name="x", uid="u1"),
        components=COMPONENTS,
        min_member=2,
        attempt=attempt,
        **fields,
    )


def reservation(state: str = "Landed", *, dispatched: bool = True, **fields: Any) -> ReservationView:
    return ReservationView(
        uid="r1", resource_version="7", epoch=1, state=state, dispatched=dispatched, **fields  # type: ignore[arg-type]
    )  # fmt: skip


def copy(**fields: Any) -> CopyView:
    whole: dict[str, Any] = {"uid": "copy1", "resource_version": "9", "job_id": ID, "epoch": 1} | fields
    return CopyView(**whole)


ENDED = copy(end=End(state="Succeeded", message="done", completion_time="2026-08-01T11:00:00Z"))


def member(**fields: Any) -> MemberView:
    whole: dict[str, Any] = {"cluster": "c1", "cluster_uid": "k1"} | fields
    return MemberView(**whole)


def step(binding: BindingSpec | None, *, seen: MemberView | None = None, **view: Any) -> Step:
    view.setdefault("job", job())
    return next_step(binding, View(member=seen, **view), NOW, LIMITS)


def recorded(found: Step, change: str) -> BindingSpec:
    assert isinstance(found, Record), found
    assert found.change == change
    return found.spec
