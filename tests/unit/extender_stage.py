"""A core on a stage: a member cluster in memory that carries out what the core asks for, and a scheduler to ask it.

`Stage` keeps the API's truth (nodes, pods, reservations), performs effects at once unless told to hold them, and
remembers them. Time stands still unless `pass_time`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from extender.config import CoreConfig
from extender.core import Core, FilterAnswer
from extender.effects import (
    AnswerBind,
    BindCall,
    Effect,
    EvictPods,
    Outcome,
    PostBindings,
    Recheck,
    RecordEvent,
    SetPodGroupStatus,
    SetReservationStatus,
    WakePods,
)
from kube.objects.nodes import Node
from kube.objects.pod_group import PodGroup
from kube.objects.pods import Pod
from kube.objects.reservation import GangReservation

HTTP_TIMEOUT = 75.0


@dataclass
class Stage:
    config: CoreConfig = field(default_factory=lambda: CoreConfig(takeover_grace=0.0))
    now: float = 1000.0
    auto_post: bool = True
    auto_recheck: bool = True
    auto_status: bool = True

    def __post_init__(self) -> None:
        self.core = Core(self.config)
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        """By UID."""
        self.groups: dict[tuple[str, str], PodGroup] = {}
        self.reservations: dict[str, GangReservation] = {}
        self.effects: list[Effect] = []
        self.answers: dict[int, str] = {}
        self.calls: dict[int, BindCall] = {}
        self.woken: list[str] = []
        self.evicted: list[str] = []
        self.events: list[RecordEvent] = []
        self.posts: list[tuple[str, str]] = []
        """(UID, node) in the order they were sent."""
        self.refuse_posts: dict[str, list[Outcome]] = {}
        """UID -> outcomes of its next POSTs."""
        self._version = 100
        self._call = 0

    # --- the cluster ---

    def start(self, *, hub_alive: bool = True) -> "Stage":
        if hub_alive:
            self.perform(self.core.hub_lease_seen(self.now))
        self.perform(self.core.synced(self.now))
        return self

    def add(self, *objects: Node | Pod | PodGroup | GangReservation) -> "Stage":
        for each in objects:
            if isinstance(each, Node):
                self.nodes[each.metadata.name] = each
                self.perform(self.core.node_changed(each, self.now))
            elif isinstance(each, Pod):
                self.pods[each.metadata.uid] = each
                self.perform(self.core.pod_changed(each, self.now))
            elif isinstance(each, PodGroup):
                self.groups[each.metadata.key] = each
                self.perform(self.core.pod_group_changed(each, self.now))
            else:
                self.reservations[each.metadata.name] = each
                self.perform(self.core.reservation_changed(each, self.now))
        return self

    def delete(self, pod: Pod) -> None:
        meta = pod.metadata
        self.pods.pop(meta.uid, None)
        self.perform(self.core.pod_deleted(meta.namespace, meta.name, meta.uid, self.now))

    def finish(self, pod: Pod, phase: str = "Succeeded") -> None:
        current = self.pods[pod.metadata.uid]
        current.status.phase = phase
        self.add(copy(current))

    def lose_node(self, name: str) -> None:
        del self.nodes[name]
        self.perform(self.core.node_deleted(name, self.now))

    def change_reservation(self, name: str, **spec: object) -> None:
        """The hub's PUT."""
        changed = copy(self.reservations[name])
        for key, value in spec.items():
            setattr(changed.spec, key, value)
        self._version += 1
        changed.metadata.resource_version = str(self._version)
        self.add(changed)

    # --- the scheduler ---

    def filter(self, pod: Pod, names: Sequence[str] | None = None) -> FilterAnswer:
        answer, effects = self.core.filter(pod, sorted(self.nodes) if names is None else names, self.now)
        self.perform(effects)
        return answer

    def node_for(self, pod: Pod, names: Sequence[str] | None = None) -> str | None:
        """The one node `filter` answers with; None for a refusal."""
        answer = self.filter(pod, names)
        assert len(answer.node_names) < 2, answer
        return answer.node_names[0] if answer.node_names else None

    def bind(self, pod: Pod, node: str, timeout: float = HTTP_TIMEOUT) -> int:
        self._call += 1
        meta = pod.metadata
        call = BindCall(
            id=self._call,
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            node=node,
            deadline=self.now + timeout,
        )
        self.calls[call.id] = call
        self.perform(self.core.bind_arrived(call, self.now))
        return call.id

    def schedule(self, pod: Pod, names: Sequence[str] | None = None) -> int | str:
        """One scheduling attempt: the bind call's id, or the refusal."""
        answer = self.filter(pod, names)
        if not answer.node_names:
            return next(iter([*answer.failed.values(), *answer.unresolvable.values()]), answer.error)
        return self.bind(pod, answer.node_names[0])

    def held(self) -> set[int]:
        return set(self.calls) - set(self.answers)

    # --- time and effects ---

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.core.next_wakeup()) is not None and due <= until:
            self.now = max(self.now, due)
            self.perform(self.core.tick(self.now))
        self.now = until
        self.perform(self.core.tick(self.now))

    def perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self.effects.append(effect)
            if isinstance(effect, AnswerBind):
                assert effect.call_id not in self.answers, "answered twice"
                self.answers[effect.call_id] = effect.error
            elif isinstance(effect, PostBindings):
                for binding in effect.bindings:
                    self.posts.append((binding.uid, binding.node))
                if self.auto_post:
                    for binding in effect.bindings:
                        self.post(binding.uid, binding.node)
            elif isinstance(effect, Recheck):
                if self.auto_recheck:
                    self.perform(self.core.recheck_done(effect.gang, effect.token, "", self.now))
            elif isinstance(effect, SetReservationStatus):
                if self.auto_status:
                    self.put_status(effect)
            elif isinstance(effect, SetPodGroupStatus):
                if self.auto_status:
                    self.put_group_status(effect)
            elif isinstance(effect, WakePods):
                self.woken += [ref.name for ref in effect.pods]
            elif isinstance(effect, EvictPods):
                self.evicted += [ref.name for ref in effect.pods]
            elif isinstance(effect, RecordEvent):
                self.events.append(effect)

    def post(self, uid: str, node: str, *, watch: bool = True) -> None:
        """The API server's answer to one Binding."""
        planned = self.refuse_posts.get(uid)
        outcome = planned.pop(0) if planned else Outcome.BOUND
        pod = self.pods.get(uid)
        if outcome is Outcome.BOUND and pod is None:
            outcome = Outcome.GONE
        if outcome is Outcome.BOUND and pod is not None:
            if pod.spec.node_name:
                outcome = Outcome.ALREADY_THERE if pod.spec.node_name == node else Outcome.CONFLICT
            else:
                pod = copy(pod)
                pod.spec.node_name = node
                pod.status.phase = "Running"
                self.pods[uid] = pod
        text = "" if outcome in (Outcome.BOUND, Outcome.ALREADY_THERE) else outcome.value
        self.perform(self.core.posted(uid, node, outcome, text, self.now))
        if watch and outcome is Outcome.BOUND and uid in self.pods:
            self.perform(self.core.pod_changed(copy(self.pods[uid]), self.now))

    def put_status(self, effect: SetReservationStatus) -> bool:
        """The API server's optimistic lock; whether the write won."""
        current = self.reservations.get(effect.name)
        if current is None or current.metadata.resource_version != effect.resource_version:
            return False
        changed = copy(current)
        changed.status = effect.status
        self._version += 1
        changed.metadata.resource_version = str(self._version)
        self.reservations[effect.name] = changed
        self.perform(self.core.reservation_changed(changed, self.now))
        return True

    def put_group_status(self, effect: SetPodGroupStatus) -> None:
        current = self.groups.get((effect.namespace, effect.name))
        if current is not None and current.metadata.resource_version == effect.resource_version:
            changed = copy(current)
            changed.status = effect.status
            self._version += 1
            changed.metadata.resource_version = str(self._version)
            self.add(changed)

    # --- what is seen ---

    def of(self, kind: type) -> list[Effect]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def status(self, name: str) -> str:
        """State of a reservation, with its reason."""
        status = self.reservations[name].status
        return f"{status.state} {status.reason}".strip()

    def bound(self) -> dict[str, str]:
        """Name -> node of bound pods."""
        return {pod.metadata.name: pod.spec.node_name for pod in self.pods.values() if pod.spec.node_name}

    def states(self) -> dict[str, int]:
        return {state: count for state, count in self.core.metrics().gangs.items() if count}


def copy(each):
    return msgspec.convert(msgspec.to_builtins(each), type(each))
