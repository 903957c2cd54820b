"""The life of a reservation: what is held, until when, and what its status says.

| state              | room held     | ends                                                                        |
|--------------------|---------------|-----------------------------------------------------------------------------|
| Pending, Reserved  | once Reserved | TTL from first sight or last renewal: Refused TTLExpired                    |
| Dispatched         | yes           | landing deadline: failed together, Refused LandingDeadlineExceeded          |
| Landed             | by the pods   | kept as the epoch fence until it is deleted or a higher epoch replaces it   |
| Refused            | no            | final                                                                       |

Clocks of hub and member are never compared: times count from when this process first saw the state.
"""

from collections.abc import Mapping
from typing import Any

from extender.effects import SetReservationStatus
from extender.gangs import Gang, HubIdentity, Role
from extender.pod_facts import hub_gang_key
from extender.shortfall import Shortfall
from extender.timers import Timer
from extender.world import Held, World
from kube.objects.meta import Json
from kube.objects.names import POD_GROUP, ROLE
from kube.objects.pod_class import PodClass, template_classes
from kube.objects.pod_requests import PodTemplateError
from kube.objects.quantity import QuantityError
from kube.objects.reservation import GangReservation, Placement, ReservationSpec, ReservationStatus

STATUS_RETRY = 5.0


def changed(world: World, reservation: GangReservation, now: float) -> None:
    """A reservation was seen. `spec.state` and `renewals` only move forward: an older reading is ignored."""
    spec = reservation.spec
    key = hub_gang_key(spec.job_id, spec.epoch)
    held = world.reservations.get(key)
    if held is not None and held.reservation.metadata.uid == reservation.metadata.uid:
        former = held.reservation.spec
        if (former.state == "Dispatched" and spec.state != "Dispatched") or spec.renewals < former.renewals:
            return
        held.reservation = reservation
    else:
        held = world.reservations[key] = Held(reservation, renewals=spec.renewals)
        _gang_of(world, key, held, now)
        _supersede(world, key, held)
        if spec.state != "Dispatched":
            world.timers.set(Timer.TTL, key, now + spec.ttl_seconds)
    if spec.renewals > held.renewals:
        held.renewals = spec.renewals
        world.timers.set(Timer.TTL, key, now + spec.ttl_seconds)
    if spec.state == "Dispatched":
        world.timers.clear(Timer.TTL, key)
        if held.dispatched_from is None:
            held.dispatched_from = now
            if reservation.status.state != "Landed":
                world.timers.set(Timer.LANDING, key, now + spec.landing_deadline_seconds)
    _compare_wish(world, key, held, now)
    gang = world.gangs[key]
    gang.prefer_topology_key = spec.prefer_topology_key
    world.touch(key)


def deleted(world: World, name: str) -> None:
    """Nothing is held for it any more; its pods are admitted no longer."""
    key = f"hub:{name}"
    if world.reservations.pop(key, None) is None:
        return
    for timer in (Timer.TTL, Timer.LANDING, Timer.STATUS, Timer.CLAIM):
        world.timers.clear(timer, key)
    world.claims.pop(key, None)
    gang = world.gangs.get(key)
    if gang is not None:
        gang.stale = True
    world.touch(key)


def reserved(world: World, gang: Gang, now: float) -> None:
    """The whole gang has slots."""
    held = world.reservations.get(gang.key)
    if held is not None and (held.wish or held.reservation.status).state == "":
        _wish(world, gang.key, held, "Reserved", placements=_slot_placements(world, gang), now=now)


def landed(world: World, gang: Gang, now: float) -> None:
    held = world.reservations.get(gang.key)
    if held is None:
        return
    world.timers.clear(Timer.LANDING, gang.key)
    world.timers.clear(Timer.TTL, gang.key)
    if not held.refused and (held.wish or held.reservation.status).state != "Landed":
        _wish(world, gang.key, held, "Landed", placements=_bound_placements(gang), now=now)


def landed_once(world: World, gang: Gang) -> bool:
    """Its status says so: all its pods were bound at one time."""
    held = world.reservations.get(gang.key)
    return held is not None and (held.wish or held.reservation.status).state == "Landed"


def wants_claim(world: World, gang: Gang) -> bool:
    """Not promised anything yet, and the hub asked to wait for room rather than be refused."""
    held = world.reservations.get(gang.key)
    return held is not None and held.reservation.spec.claim and (held.wish or held.reservation.status).state == ""


def refuse(world: World, gang: Gang, reason: str, message: str, now: float) -> None:
    """Final. Loses, by resourceVersion, against a change of the hub that was not seen yet (PROTOCOL rule 13)."""
    held = world.reservations.get(gang.key)
    if held is None or held.refused:
        return
    world.timers.clear(Timer.TTL, gang.key)
    world.timers.clear(Timer.LANDING, gang.key)
    world.timers.clear(Timer.CLAIM, gang.key)
    world.claims.pop(gang.key, None)
    _wish(world, gang.key, held, "Refused", reason=reason, message=message, now=now)


def does_not_fit(world: World, gang: Gang, shortfall: Shortfall, now: float) -> None:
    """No plan exists: a promise that was made is broken, one that was not is not made."""
    held = world.reservations.get(gang.key)
    if held is None:
        return
    if now < world.judge_from and held.reservation.spec.state == "Dispatched":
        return  # Bindings of a predecessor may still show up
    had = (held.wish or held.reservation.status).state != ""
    refuse(world, gang, "PromiseBroken" if had else "InsufficientResources", str(shortfall), now)


def note_ends(world: World, gang: Gang, now: float) -> None:
    """PROTOCOL rule 9: remember in the status that the gang's pods have ended.

    Ended: none is left that runs, and either the member whose success is the job's success has succeeded or the end
    of every member that was ever bound was seen. Pods that merely vanished prove nothing.
    """
    held = world.reservations.get(gang.key)
    if held is None or gang.present or not (gang.ended_ok or (gang.saw_end and not gang.vanished)):
        return
    status = held.wish or held.reservation.status
    if status.state == "Landed" and not status.pods_ended:
        _wish(world, gang.key, held, "Landed", placements=status.placements, pods_ended=True, now=now)


def ask_again(world: World, key: str, now: float) -> None:
    """The wished status was not seen in time."""
    held = world.reservations.get(key)
    if held is not None and held.wish is not None:
        _emit(world, key, held, now)


def recorded_places(held: Held) -> list[tuple[str, str, int]]:
    """(role, node, count) that a former process promised."""
    return [(place.role, place.node, place.count) for place in held.reservation.status.placements]


def _wish(
    world: World,
    key: str,
    held: Held,
    state: str,
    *,
    now: float,
    reason: str = "",
    message: str = "",
    placements: list[Placement] | None = None,
    pods_ended: bool = False,
) -> None:
    held.wish = ReservationStatus(
        state=state,  # type: ignore[arg-type]
        reason=reason,
        message=message,
        observed_generation=held.reservation.metadata.generation,
        placements=placements or [],
        pods_ended=pods_ended or held.reservation.status.pods_ended,
    )
    _emit(world, key, held, now)


def _emit(world: World, key: str, held: Held, now: float) -> None:
    if held.wish is None:
        return
    meta = held.reservation.metadata
    world.emit(
        SetReservationStatus(
            namespace=meta.namespace, name=meta.name, resource_version=meta.resource_version, status=held.wish
        )
    )
    world.timers.set(Timer.STATUS, key, now + STATUS_RETRY)


def _compare_wish(world: World, key: str, held: Held, now: float) -> None:
    """What was asked for is seen, or overtaken, or must be asked for again on the newer object."""
    wish, status = held.wish, held.reservation.status
    if wish is None:
        return
    if (wish.state, wish.reason, wish.pods_ended) == (status.state, status.reason, status.pods_ended):
        held.wish = None
        world.timers.clear(Timer.STATUS, key)
    elif wish.state == "Refused" and wish.reason == "TTLExpired" and held.reservation.spec.state == "Dispatched":
        held.wish = None  # the hub was faster
        world.timers.clear(Timer.STATUS, key)
        world.gangs[key].stale = True
    elif world.deciding:
        _emit(world, key, held, now)


def _gang_of(world: World, key: str, held: Held, now: float) -> Gang:
    """The gang of a reservation; pods may have been seen before it."""
    spec = held.reservation.spec
    gang = world.gangs.get(key)
    if gang is None:
        gang = world.gangs[key] = Gang(key, spec.job_namespace, spec.job_name, born=now)
    gang.hub = HubIdentity(spec.hub_id, spec.job_id, spec.epoch)
    gang.namespace, gang.name = spec.job_namespace, spec.job_name
    gang.created = held.reservation.metadata.creation_timestamp or gang.created
    gang.min_member = max(spec.min_member, sum(role.min_count for role in spec.roles))
    gang.schedule_timeout = float(spec.landing_deadline_seconds)
    try:
        classes = role_classes(world, spec)
    except (PodTemplateError, QuantityError) as error:
        held.invalid = f"the pod template can't be planned: {error}"
        return gang
    gang.roles = {
        role.name: Role(role.name, classes[role.name], role.count, min(role.min_count, role.count))
        for role in spec.roles
    }
    gang.priority = max((each.priority for each in classes.values()), default=0)
    gang.stale = True
    return gang


def role_classes(world: World, spec: ReservationSpec) -> dict[str, PodClass]:
    """Classes of the roles as admission in this member will make their pods: RuntimeClass overhead, priority.

    Raises PodTemplateError or QuantityError.
    """
    templates = {role.name: _admitted(world, spec, role.name, role.template) for role in spec.roles}
    return template_classes(spec.job_namespace, templates, label_keys=world.ledger.topology.selector_keys)


def _admitted(world: World, spec: ReservationSpec, role: str, template: Json) -> Json:
    pod_spec = template.get("spec")
    if not isinstance(pod_spec, Mapping):
        raise PodTemplateError(f"role {role} has no pod spec")
    admitted: dict[str, Any] = dict(pod_spec)
    runtime = world.runtime_classes.get(str(pod_spec.get("runtimeClassName") or ""))
    if runtime is not None:
        if runtime.overhead is not None and runtime.overhead.pod_fixed:
            admitted["overhead"] = runtime.overhead.pod_fixed
        if runtime.scheduling is not None and runtime.scheduling.node_selector:
            selector = _map(admitted.get("nodeSelector"), f"role {role}: spec.nodeSelector")
            admitted["nodeSelector"] = {**selector, **runtime.scheduling.node_selector}
    admitted["priority"] = _priority(world, pod_spec)
    metadata = _map(template.get("metadata"), f"role {role}: metadata")
    labels = {
        **_map(metadata.get("labels"), f"role {role}: metadata.labels"),
        ROLE: role,
        POD_GROUP: spec.job_name,
        "training.kubeflow.org/job-name": spec.job_name,
        "training.kubeflow.org/replica-type": role,
        "pytorch-job-name": spec.job_name,
        "pytorch-replica-type": role,
    }
    return {"metadata": {**metadata, "labels": labels}, "spec": admitted}


def _map(value: Any, what: str) -> Mapping[str, Any]:
    """The schema of a reservation does not look into templates. Raises PodTemplateError; null is an empty map."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise PodTemplateError(f"{what} is not an object")
    return value


def _priority(world: World, spec: Mapping[str, Any]) -> int:
    if isinstance(spec.get("priority"), int):
        return int(spec["priority"])
    named = world.priority_classes.get(str(spec.get("priorityClassName") or ""))
    if named is not None:
        return named.value
    defaults = [each.value for each in world.priority_classes.values() if each.global_default]
    return min(defaults) if defaults else 0  # with several defaults the smallest wins (priority admission plugin)


def _supersede(world: World, key: str, held: Held) -> None:
    """The higher epoch of an id replaces the lower ones."""
    spec = held.reservation.spec
    for other_key, other in world.reservations.items():
        if other_key == key or (other.reservation.spec.job_id, other.reservation.spec.hub_id) != (
            spec.job_id,
            spec.hub_id,
        ):
            continue
        older = other if other.reservation.spec.epoch < spec.epoch else held
        older.superseded = True
        world.touch(other_key)


def _slot_placements(world: World, gang: Gang) -> list[Placement]:
    counts: dict[tuple[str, str], int] = {}
    for slot in world.slots_of(gang):
        counts[slot.node, slot.role] = counts.get((slot.node, slot.role), 0) + 1
    return _placements(counts)


def _bound_placements(gang: Gang) -> list[Placement]:
    counts: dict[tuple[str, str], int] = {}
    for member in gang.members.values():
        if member.node:
            counts[member.node, member.role] = counts.get((member.node, member.role), 0) + 1
    return _placements(counts)


def _placements(counts: dict[tuple[str, str], int]) -> list[Placement]:
    return [Placement(node, role, count) for (node, role), count in sorted(counts.items())]
