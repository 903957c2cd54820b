"""The facade of the extender's decisions: everything the shell may ask or tell.

Pure: no I/O, no event loop, no clock. `now` is a monotonic second that never goes back (CLOCK_BOOTTIME in production).
Every method that returns effects returns them in the order they should happen; the shell performs them and reports
back. Calls come one at a time (one event loop); nothing in here waits.

Life: feed methods fill the caches at any time. `synced` (caches complete *and* this process leads) rebuilds the plans
and starts deciding; `stood_down` (leadership lost) fails every held call and forgets plans, keeping the caches.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from extender import (
    answers_bind,
    answers_filter,
    answers_preempt,
    barrier,
    clockwork,
    group_status,
    intake,
    life,
    report,
    reservations,
    takeover,
    waking,
)
from extender.answers_preempt import Victims
from extender.config import CoreConfig
from extender.effects import BindCall, Effect, Outcome, PostBindings
from extender.filter_answer import FilterAnswer
from extender.gangs import State
from extender.timers import Timer
from extender.world import World
from kube.objects.capacity import CapacityStatus
from kube.objects.classes import PriorityClass, RuntimeClass
from kube.objects.nodes import Node
from kube.objects.pod_group import PodGroup
from kube.objects.pods import Pod
from kube.objects.reservation import GangReservation
from kube.objects.resource_quota import ResourceQuota

__all__ = ["Core", "FilterAnswer", "Metrics", "Victims"]


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
    timeouts: int = 0
    """Counter: rounds of held members that ended without the gang."""
    overcommitted_by_others: int = 0
    """Counter: pods bound past this extender onto a node that had no room for them."""
    sizes: dict[str, int]
    """Entries in each internal map: invariant 8 is watched here."""


class Core:
    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self._world = World(config)
        self._sequence = 0
        self._label_keys: tuple[int, frozenset[str]] | None = None
        """(state of the nodes, label keys worth reporting then)."""
        self._delayed: list[PostBindings] = []

    # --- feed: what watches and live reads saw -----------------------------------------------------------------

    def node_changed(self, node: Node, now: float) -> list[Effect]:
        intake.node_changed(self._world, node)
        return self._settle(now)

    def node_deleted(self, name: str, now: float) -> list[Effect]:
        intake.node_deleted(self._world, name)
        return self._settle(now)

    def pod_changed(self, pod: Pod, now: float) -> list[Effect]:
        """Added or modified. A pod of the same name with another UID replaces the former one."""
        intake.pod_changed(self._world, pod, now)
        return self._settle(now)

    def pod_deleted(self, namespace: str, name: str, uid: str, now: float) -> list[Effect]:
        """`uid` of the deleted pod ("": whichever has the name); a pod of that name with another UID stays."""
        uid = uid or self._world.pod_names.get((namespace, name), "")
        if uid:
            intake.pod_deleted(self._world, uid, now)
        return self._settle(now)

    def pod_group_changed(self, group: PodGroup, now: float) -> list[Effect]:
        key = f"{group.metadata.namespace}/{group.metadata.name}"
        group_status.seen(self._world, key, group, now)
        self._world.touch(key)
        return self._settle(now)

    def pod_group_deleted(self, namespace: str, name: str, now: float) -> list[Effect]:
        key = f"{namespace}/{name}"
        group_status.gone(self._world, key)
        self._world.touch(key)
        return self._settle(now)

    def reservation_changed(self, reservation: GangReservation, now: float) -> list[Effect]:
        reservations.changed(self._world, reservation, now)
        return self._settle(now)

    def reservation_deleted(self, namespace: str, name: str, now: float) -> list[Effect]:  # noqa: ARG002
        reservations.deleted(self._world, name)
        return self._settle(now)

    def resource_quota_changed(self, quota: ResourceQuota, now: float) -> list[Effect]:
        self._world.quotas[quota.metadata.key] = quota
        return self._settle(now)

    def resource_quota_deleted(self, namespace: str, name: str, now: float) -> list[Effect]:
        self._world.quotas.pop((namespace, name), None)
        return self._settle(now)

    def priority_class_changed(self, priority_class: PriorityClass, now: float) -> list[Effect]:
        self._world.priority_classes[priority_class.metadata.name] = priority_class
        return self._settle(now)

    def priority_class_deleted(self, name: str, now: float) -> list[Effect]:
        self._world.priority_classes.pop(name, None)
        return self._settle(now)

    def runtime_class_changed(self, runtime_class: RuntimeClass, now: float) -> list[Effect]:
        self._world.runtime_classes[runtime_class.metadata.name] = runtime_class
        return self._settle(now)

    def runtime_class_deleted(self, name: str, now: float) -> list[Effect]:
        self._world.runtime_classes.pop(name, None)
        return self._settle(now)

    def hub_lease_seen(self, now: float) -> list[Effect]:
        """The hub's Lease was *renewed* (its spec changed since it was last read). Not to be called for the first
        sight after a start: rule 12 asks for a renewal."""
        self._world.hub_seen = now
        for gang in self._world.gangs.values():
            if gang.hub is not None and gang.refused:
                waking.room_found(self._world, gang, now)
        return self._settle(now)

    # --- life ----------------------------------------------------------------------------------------------------

    def synced(self, now: float) -> list[Effect]:
        """All caches are complete and this process leads: rebuild (half-bound gangs first, then dispatched, then
        Reserved, by age) and decide from here on."""
        self._world.judge_from = now + self.config.takeover_grace
        if self.config.takeover_grace > 0:
            self._world.timers.set(Timer.GRACE, "", self._world.judge_from)
        takeover.take_over(self._world, now)
        return self._settle(now)

    def stood_down(self, now: float) -> list[Effect]:
        """Leadership lost (or about to be): every held call is answered with an error, plans are forgotten."""
        self._delayed.clear()
        takeover.stand_down(self._world, now)
        return self._settle(now)

    # --- questions of kube-scheduler ---------------------------------------------------------------------------

    def filter(self, pod: Pod, node_names: Sequence[str], now: float) -> tuple[FilterAnswer, list[Effect]]:
        world = self._world
        if not world.deciding:
            return FilterAnswer(node_names=[], error=answers_filter.NOT_DECIDING), []
        world.last_question = now
        world.schedulers.add(pod.spec.scheduler_name)
        facts = intake.pod_changed(world, pod, now, confirmed=False)
        answer = answers_filter.answer(world, pod, facts, node_names, now)
        return answer, self._settle(now)

    def preempt(self, pod: Pod, victims: Victims, now: float) -> dict[str, tuple[list[str], int]]:
        """Candidates that may stay: same shape, a subset. Empty is a veto."""
        if not self._world.deciding:
            return {}
        facts = intake.pod_changed(self._world, pod, now, confirmed=False)
        return answers_preempt.answer(self._world, facts, victims)

    def bind_arrived(self, call: BindCall, now: float) -> list[Effect]:
        """Exactly one `AnswerBind` follows for each call, now or later, unless `bind_abandoned` comes first."""
        self._world.last_question = now
        answers_bind.arrived(self._world, call, now)
        return self._settle(now)

    def bind_abandoned(self, call_id: int, now: float) -> list[Effect]:
        """The client disconnected; no answer is owed. A commit that is under way goes on."""
        answers_bind.abandoned(self._world, call_id, now)
        return self._settle(now)

    # --- what became of effects --------------------------------------------------------------------------------

    def recheck_done(self, gang: str, token: int, failure: str, now: float) -> list[Effect]:
        known = self._world.gangs.get(gang)
        if known is not None:
            barrier.recheck_done(self._world, known, token, failure, now)
        return self._settle(now)

    def posted(self, uid: str, node: str, outcome: Outcome, reason: str, now: float) -> list[Effect]:  # noqa: ARG002
        """`reason`: text for people, "" with success."""
        answers_bind.posted(self._world, uid, outcome, reason, now)
        return self._settle(now)

    # --- time --------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Whatever is due by `now`. Call it at or after `next_wakeup`; calling more often is harmless."""
        effects: list[Effect] = []
        while (due := self._world.timers.pop_due(now)) is not None:
            if due[0] is Timer.GRACE:
                effects += self._delayed
                self._delayed = []
                takeover.judge_again(self._world)
                effects += self._settle(now)
                continue
            clockwork.fire(self._world, *due, now)
            effects += self._settle(now)
        return effects

    def next_wakeup(self) -> float | None:
        """Monotonic second at which `tick` has something to do; None: nothing pending."""
        return self._world.timers.next_due()

    # --- views -------------------------------------------------------------------------------------------------

    def report(self) -> CapacityStatus:
        """The present capacity; `sequence` is raised on each call."""
        self._sequence += 1
        places = self._world.ledger.places
        if self._label_keys is None or self._label_keys[0] != places:
            self._label_keys = (places, report.label_keys(self._world))
        return report.capacity(self._world, self._sequence, self._label_keys[1])

    @property
    def revision(self) -> int:
        """Changes whenever `report` would (cheap: tells the reporter that there is something to say)."""
        return self._world.ledger.revision + self._world.reports

    def metrics(self) -> Metrics:
        world = self._world
        gangs = Counter({state.value: 0 for state in State if state is not State.ABSENT})
        gangs.update(gang.state.value for gang in world.gangs.values())
        held = Counter(
            (each.wish or each.reservation.status).state or "Pending" for each in world.reservations.values()
        )
        return Metrics(
            gangs=dict(gangs),
            reservations={state: held.get(state, 0) for state in ("Pending", "Reserved", "Refused", "Landed")},
            held_calls=sum(len(gang.held) for gang in world.gangs.values()) + len(world.gate),
            slots=len(world.ledger.slots),
            charges=len(world.ledger.charges),
            refusals=dict(world.refusals),
            moves=world.counters["moves"],
            swaps=world.counters["swaps"],
            replans=world.counters["replans"],
            broken_promises=world.counters["broken_promises"],
            evicted_gangs=world.counters["evicted_gangs"],
            timeouts=world.counters["timeouts"],
            overcommitted_by_others=world.counters["overcommitted_by_others"],
            sizes=world.sizes(),
        )

    # --- inside ------------------------------------------------------------------------------------------------

    def _settle(self, now: float) -> list[Effect]:
        """Review every gang that was touched, look again at what waits for room that became free; then the effects."""
        world = self._world
        while world.dirty or world.gained:
            while world.dirty:
                key = next(iter(world.dirty))
                del world.dirty[key]
                gang = world.gangs.get(key)
                if gang is not None:
                    life.review(world, gang, now)
            if world.gained:
                if world.gate:
                    answers_bind.look_at_gains(world, now)
                world.gained.clear()
                if world.hungry:
                    world.timers.set_earliest(Timer.PLAN, "", now + life.RETRY_PAUSE)
        effects = world.drain()
        if now < world.judge_from:
            posts = [effect for effect in effects if isinstance(effect, PostBindings)]
            if posts:
                self._delayed += posts
                effects = [effect for effect in effects if not isinstance(effect, PostBindings)]
        return effects
