"""Which pods of a gang may be planned, answered and bound at all (PROTOCOL rules 11 and 12).

Sentences are constant per state: a refusal text that changes makes kube-scheduler write, and its own write wakes the
pod again.
"""

from extender.gangs import Gang
from extender.pod_facts import PodFacts
from extender.world import Held, World
from kube.objects.names import HUB_ID

NO_RESERVATION = "no reservation of the hub admits this pod"
NOT_DISPATCHED = "the hub has not dispatched this gang yet"
REFUSED = "the reservation of this gang was refused, the hub takes it back"
SUPERSEDED = "a newer attempt of this job replaces this one"
OTHER_HUB = "the reservation belongs to another hub"
UNKNOWN_ROLE = "the reservation has no role of this pod's name"
HUB_SILENT = "the hub has not renewed its Lease here, gangs of the hub wait for it"
NO_POD_GROUP = "the PodGroup of this pod does not exist"
EVICTING = "this gang is being evicted as a whole"


def refusal(world: World, gang: Gang, facts: PodFacts, now: float) -> str:
    """Why this pod may not be planned or bound now; "" if it may."""
    if gang.state == "evicting":
        return EVICTING
    if facts.identity is not None and facts.identity.from_hub:
        return _hub_refusal(world, gang, facts, now)
    return group_refusal(world, gang)


def gang_refusal(world: World, gang: Gang, now: float) -> str:
    """The same for the gang as a whole, at its commit."""
    if gang.state == "evicting":
        return EVICTING
    if gang.hub is None:
        return group_refusal(world, gang)
    return _reservation_refusal(world.reservations.get(gang.key)) or _silence(world, now)


def group_refusal(world: World, gang: Gang) -> str:
    """A gang by label `scheduling.x-k8s.io/pod-group` needs the object that says how many it needs."""
    group = world.pod_groups.get(gang.key)
    if group is None:
        return NO_POD_GROUP if gang.needs_group else ""
    # A webhook may have taken the annotations off the pods of a hub's job: its PodGroup still says whose it is.
    return NO_RESERVATION if group.metadata.annotation(HUB_ID) else ""


def may_hold(world: World, gang: Gang) -> bool:
    """Room may be kept for a hub's gang: its reservation stands, Pending or Dispatched."""
    held = world.reservations.get(gang.key)
    return held is not None and not (held.refused or held.superseded or held.invalid)


def hub_silent(world: World, now: float) -> bool:
    """Rule 12: not renewed since this process started, or not for too long."""
    return world.hub_seen is None or now - world.hub_seen > world.config.hub_silence_limit


def _hub_refusal(world: World, gang: Gang, facts: PodFacts, now: float) -> str:
    held = world.reservations.get(gang.key)
    reason = _reservation_refusal(held)
    if reason:
        return reason
    identity = facts.identity
    if held is not None and identity is not None:
        if identity.hub_id != held.reservation.spec.hub_id:
            return OTHER_HUB
        spec = held.reservation.spec
        if identity.key != (spec.job_namespace, spec.job_name):
            return NO_RESERVATION
        if identity.role not in gang.roles:
            return UNKNOWN_ROLE
    return _silence(world, now)


def _reservation_refusal(held: Held | None) -> str:
    if held is None:
        return NO_RESERVATION
    if held.superseded:
        return SUPERSEDED
    if held.refused:
        return REFUSED
    if held.invalid:
        return NO_RESERVATION
    if held.reservation.spec.state != "Dispatched":
        return NOT_DISPATCHED
    return ""


def _silence(world: World, now: float) -> str:
    return HUB_SILENT if hub_silent(world, now) else ""
