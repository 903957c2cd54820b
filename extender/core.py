"""The facade of the extender's decisions: everything the shell may ask or tell.

Pure: no I/O, no event loop, no clock. `now` is a monotonic second that never goes back (CLOCK_BOOTTIME in production).
Every method that returns effects returns them in the order they should happen; the shell performs them and reports
back. Calls come one at a time (one event loop); nothing in here waits.

Life: feed methods fill the caches at any time. `synced` (caches complete *and* this process leads) rebuilds the plans
and starts deciding; `stood_down` (leadership lost) fails every held call and forgets plans, keeping the caches.
"""

from collections.abc import Mapping, Sequence

import msgspec

from extender.config import CoreConfig
from extender.effects import BindCall, Effect, Outcome
from kube.objects.capacity import CapacityStatus
from kube.objects.classes import PriorityClass, RuntimeClass
from kube.objects.nodes import Node
from kube.objects.pod_group import PodGroup
from kube.objects.pods import Pod
from kube.objects.reservation import GangReservation
from kube.objects.resource_quota import ResourceQuota


class FilterAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """ExtenderFilterResult with names. `node_names` is a subset of what was offered."""

    node_names: list[str]
    failed: dict[str, str] = {}
    """FailedNodes: preemption may be tried there."""
    unresolvable: dict[str, str] = {}
    """FailedAndUnresolvableNodes: preemption skips these."""
    error: str = ""
    """Not empty only while the core is not deciding (not synced): retried by back-off alone."""


Victims = Mapping[str, tuple[Sequence[str], int]]
"""node -> (victim pod UIDs, number of PDB violations); lists may be empty (k8s#135486)."""


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot to be exported; every series is bounded by the number of states, not of gangs."""

    gangs: dict[str, int]
    """By state of the gang's life."""
    reservations: dict[str, int]
    """By status state ("Pending" for not judged yet)."""
    held_calls: int
    slots: int
    charges: int
    refusals: dict[str, int]
    """Counter: filter refusals by reason."""
    moves: int
    swaps: int
    replans: int
    broken_promises: int
    evicted_gangs: int
    sizes: dict[str, int]
    """Entries in each internal map: invariant 8 is watched here."""


class Core:
    def __init__(self, config: CoreConfig) -> None:
        self.config = config

    # --- feed: what watches and live reads saw -----------------------------------------------------------------

    def node_changed(self, node: Node, now: float) -> list[Effect]:
        raise NotImplementedError

    def node_deleted(self, name: str, now: float) -> list[Effect]:
        raise NotImplementedError

    def pod_changed(self, pod: Pod, now: float) -> list[Effect]:
        """Added or modified. A pod of the same name with another UID replaces the former one."""
        raise NotImplementedError

    def pod_deleted(self, namespace: str, name: str, uid: str, now: float) -> list[Effect]:
        """`uid` of the deleted pod; a pod of that name with another UID stays."""
        raise NotImplementedError

    def pod_group_changed(self, group: PodGroup, now: float) -> list[Effect]:
        raise NotImplementedError

    def pod_group_deleted(self, namespace: str, name: str, now: float) -> list[Effect]:
        raise NotImplementedError

    def reservation_changed(self, reservation: GangReservation, now: float) -> list[Effect]:
        raise NotImplementedError

    def reservation_deleted(self, namespace: str, name: str, now: float) -> list[Effect]:
        raise NotImplementedError

    def resource_quota_changed(self, quota: ResourceQuota, now: float) -> list[Effect]:
        raise NotImplementedError

    def resource_quota_deleted(self, namespace: str, name: str, now: float) -> list[Effect]:
        raise NotImplementedError

    def priority_class_changed(self, priority_class: PriorityClass, now: float) -> list[Effect]:
        raise NotImplementedError

    def priority_class_deleted(self, name: str, now: float) -> list[Effect]:
        raise NotImplementedError

    def runtime_class_changed(self, runtime_class: RuntimeClass, now: float) -> list[Effect]:
        raise NotImplementedError

    def runtime_class_deleted(self, name: str, now: float) -> list[Effect]:
        raise NotImplementedError

    def hub_lease_seen(self, now: float) -> list[Effect]:
        """The hub's Lease was *renewed* (its spec changed since it was last read). Not to be called for the first
        sight after a start: rule 12 asks for a renewal."""
        raise NotImplementedError

    # --- life ----------------------------------------------------------------------------------------------------

    def synced(self, now: float) -> list[Effect]:
        """All caches are complete and this process leads: rebuild (half-bound gangs first, then dispatched, then
        Reserved, by age) and decide from here on."""
        raise NotImplementedError

    def stood_down(self, now: float) -> list[Effect]:
        """Leadership lost (or about to be): every held call is answered with an error, plans are forgotten."""
        raise NotImplementedError

    # --- questions of kube-scheduler ---------------------------------------------------------------------------

    def filter(self, pod: Pod, node_names: Sequence[str], now: float) -> tuple[FilterAnswer, list[Effect]]:
        raise NotImplementedError

    def preempt(self, pod: Pod, victims: Victims, now: float) -> dict[str, tuple[list[str], int]]:
        """Candidates that may stay: same shape, a subset. Empty is a veto."""
        raise NotImplementedError

    def bind_arrived(self, call: BindCall, now: float) -> list[Effect]:
        """Exactly one `AnswerBind` follows for each call, now or later, unless `bind_abandoned` comes first."""
        raise NotImplementedError

    def bind_abandoned(self, call_id: int, now: float) -> list[Effect]:
        """The client disconnected; no answer is owed. A commit that is under way goes on."""
        raise NotImplementedError

    # --- what became of effects --------------------------------------------------------------------------------

    def recheck_done(self, gang: str, token: int, failure: str, now: float) -> list[Effect]:
        raise NotImplementedError

    def posted(self, uid: str, node: str, outcome: Outcome, reason: str, now: float) -> list[Effect]:
        """`reason`: text for people, "" with success."""
        raise NotImplementedError

    # --- time --------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Whatever is due by `now`. Call it at or after `next_wakeup`; calling more often is harmless."""
        raise NotImplementedError

    def next_wakeup(self) -> float | None:
        """Monotonic second at which `tick` has something to do; None: nothing pending."""
        raise NotImplementedError

    # --- views -------------------------------------------------------------------------------------------------

    def report(self) -> CapacityStatus:
        """The present capacity; `sequence` is raised on each call."""
        raise NotImplementedError

    @property
    def revision(self) -> int:
        """Changes whenever `report` would (cheap: tells the reporter that there is something to say)."""
        raise NotImplementedError

    def metrics(self) -> Metrics:
        raise NotImplementedError
