"""A member cluster that misbehaves: events come late, twice, out of order or not at all; POSTs lose their answers.

It holds the truth (what the API server would say) apart from what the core was told, and a kube-scheduler with its own
cache of assumed pods. Whoever drives it decides what happens next; it checks what must hold at every step.
"""

from collections import Counter
from dataclasses import dataclass, field

from extender.config import CoreConfig
from extender.core import Core
from extender.effects import (
    AnswerBind,
    BindCall,
    Binding,
    Effect,
    EvictPods,
    Outcome,
    PostBindings,
    Recheck,
    SetReservationStatus,
)
from kube.objects.gang_identity import gang_of
from kube.objects.nodes import Node
from kube.objects.pod_group import PodGroup
from kube.objects.pod_requests import pod_request
from kube.objects.pods import Pod
from kube.objects.quantity import amount
from kube.objects.reservation import GangReservation
from tests.unit.extender_stage import copy

HTTP_TIMEOUT = 75.0
POST_TIMEOUT = 2.0
GHOST_LIFE = 50.0
"""A POST without an answer is processed within this time or never (below `unknown_binding_hold`)."""


@dataclass
class Ghost:
    """A POST whose answer was lost before it was processed."""

    binding: Binding
    until: float


@dataclass
class Chaos:
    config: CoreConfig = field(default_factory=lambda: CoreConfig(takeover_grace=0.0))

    def __post_init__(self) -> None:
        self.now = 100.0
        self.core = Core(self.config)
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.groups: dict[str, PodGroup] = {}
        self.reservations: dict[str, GangReservation] = {}
        self.backlog: list[tuple[str, str, object]] = []
        """(kind, key, object or None for a deletion) not delivered yet."""
        self.told_pods: dict[str, tuple[str, str]] = {}
        """UID -> (namespace, name) of pods the core's watch cache holds."""
        self.told_nodes: set[str] = set()
        self.calls: dict[int, BindCall] = {}
        """Open bind calls."""
        self.assumed: dict[str, str] = {}
        """kube-scheduler's own cache: UID -> node."""
        self.posts: list[Binding] = []
        self.rechecks: list[Recheck] = []
        self.sent: dict[int, float] = {}
        """id of a Binding or Recheck under way -> when it was sent."""
        self.ghosts: list[Ghost] = []
        self.leads = False
        self._serial = 0
        self.posted_to: dict[str, set[str]] = {}
        """UID -> nodes it was ever posted to."""

    # --- the truth changes -------------------------------------------------------------------------------------

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    def put(self, each: Node | Pod | PodGroup | GangReservation) -> None:
        meta = each.metadata
        if isinstance(each, Node):
            self.nodes[meta.name] = each
            self.backlog.append(("node", meta.name, copy(each)))
        elif isinstance(each, Pod):
            self.pods[meta.uid] = each
            self.backlog.append(("pod", meta.uid, copy(each)))
        elif isinstance(each, PodGroup):
            self.groups[meta.name] = each
            self.backlog.append(("group", meta.name, copy(each)))
        else:
            meta.resource_version = str(self.serial())
            self.reservations[meta.name] = each
            self.backlog.append(("reservation", meta.name, copy(each)))

    def remove_pod(self, uid: str) -> None:
        pod = self.pods.pop(uid, None)
        if pod is not None:
            self.assumed.pop(uid, None)
            self.backlog.append(("pod", uid, None))
            self.told_pods.setdefault(uid, (pod.metadata.namespace, pod.metadata.name))

    def remove_node(self, name: str) -> None:
        """With its pods, as the pod garbage collector does."""
        del self.nodes[name]
        self.backlog.append(("node", name, None))
        for uid in [uid for uid, pod in self.pods.items() if pod.spec.node_name == name]:
            self.remove_pod(uid)

    def remove_group(self, name: str) -> None:
        if self.groups.pop(name, None) is not None:
            self.backlog.append(("group", name, None))

    def remove_reservation(self, name: str) -> None:
        if self.reservations.pop(name, None) is not None:
            self.backlog.append(("reservation", name, None))

    # --- what the core is told -----------------------------------------------------------------------------------

    def deliver(self, index: int, *, again: bool = False) -> None:
        """One event of the backlog, in any order but for those of one object, which a watch never reorders."""
        kind, key, _ = self.backlog[index]
        first = next(i for i, event in enumerate(self.backlog) if event[:2] == (kind, key))
        event = self.backlog[first] if again else self.backlog.pop(first)
        self._tell(*event)

    def deliver_all(self) -> None:
        while self.backlog:
            self.deliver(0)

    def relist(self) -> None:
        """The watch broke: everything undelivered is replaced by the present state, deletions included."""
        lost = list(self.backlog)
        self.backlog.clear()
        for uid in [uid for uid in self.told_pods if uid not in self.pods]:
            self._tell("pod", uid, None)
        for name in [name for name in self.told_nodes if name not in self.nodes]:
            self._tell("node", name, None)
        for kind, key, each in lost:
            if each is None and kind in ("group", "reservation"):
                self._tell(kind, key, None)
        self.tell_everything()

    def tell_everything(self) -> None:
        for node in list(self.nodes.values()):
            self._tell("node", node.metadata.name, copy(node))
        for group in list(self.groups.values()):
            self._tell("group", group.metadata.name, copy(group))
        for reservation in list(self.reservations.values()):
            self._tell("reservation", reservation.metadata.name, copy(reservation))
        for pod in list(self.pods.values()):
            self._tell("pod", pod.metadata.uid, copy(pod))

    def _tell(self, kind: str, key: str, each: object) -> None:
        core = self.core
        if isinstance(each, Node):
            self.told_nodes.add(key)
            self.perform(core.node_changed(each, self.now))
        elif isinstance(each, Pod):
            self.told_pods[key] = (each.metadata.namespace, each.metadata.name)
            self.perform(core.pod_changed(each, self.now))
        elif isinstance(each, PodGroup):
            self.perform(core.pod_group_changed(each, self.now))
        elif isinstance(each, GangReservation):
            self.perform(core.reservation_changed(each, self.now))
        elif kind == "node":
            self.told_nodes.discard(key)
            self.perform(core.node_deleted(key, self.now))
        elif kind == "pod":
            namespace, name = self.told_pods.pop(key, ("default", ""))
            self.perform(core.pod_deleted(namespace, name, key, self.now))
        elif kind == "group":
            self.perform(core.pod_group_deleted("default", key, self.now))
        else:
            self.perform(core.reservation_deleted("muster-system", key, self.now))

    # --- leadership ----------------------------------------------------------------------------------------------

    def lead(self) -> None:
        self.leads = True
        self.perform(self.core.synced(self.now))

    def stand_down(self) -> None:
        self.leads = False
        self.perform(self.core.stood_down(self.now))
        assert not self.calls, "every call is answered when leadership goes"

    def kill(self) -> None:
        """kill -9 and a new process. What was sent is settled before the successor decides (leadership waits)."""
        for binding in self.posts:
            if self.serial() % 2:
                self._apply(binding)
        self.posts.clear()
        for ghost in self.ghosts:
            self._apply(ghost.binding)
        self.ghosts.clear()
        self.rechecks.clear()
        for call in self.calls.values():
            self.assumed.pop(call.uid, None)
        self.calls.clear()
        self.core = Core(self.config)
        self.backlog.clear()
        self.told_pods.clear()
        self.told_nodes.clear()
        self.tell_everything()
        self.perform(self.core.hub_lease_seen(self.now))
        self.lead()

    # --- kube-scheduler ------------------------------------------------------------------------------------------

    def pending(self) -> list[str]:
        return [
            uid
            for uid, pod in self.pods.items()
            if not pod.spec.node_name and not pod.finished and uid not in self.assumed
        ]

    def offered(self, uid: str) -> list[str]:
        """Nodes that pass the in-tree filters on the scheduler's own view: bound and assumed pods."""
        pod = self.pods[uid]
        used = Counter(self.used())
        for other, name in self.assumed.items():
            if other in self.pods and not self.pods[other].spec.node_name:
                used[name] += cpu_of(self.pods[other])
        return [
            name
            for name, node in self.nodes.items()
            if not node.spec.unschedulable and used[name] + cpu_of(pod) <= capacity(node)
        ]

    def schedule(self, uid: str, names: list[str]) -> None:
        pod = copy(self.pods[uid])
        answer, effects = self.core.filter(pod, names, self.now)
        assert set(answer.node_names) <= set(names)
        assert len(answer.failed) + len(answer.unresolvable) <= 1
        if gang_of(pod.metadata, pod.spec) is not None:
            assert len(answer.node_names) <= 1, "a member gets one node"
        self.perform(effects)
        if answer.node_names and uid in self.pods:
            self.bind(uid, answer.node_names[0])

    def bind(self, uid: str, node: str) -> None:
        self.assumed[uid] = node
        meta = self.pods[uid].metadata
        call = BindCall(
            id=self.serial(),
            uid=uid,
            namespace=meta.namespace,
            name=meta.name,
            node=node,
            deadline=self.now + HTTP_TIMEOUT,
        )
        self.calls[call.id] = call
        self.perform(self.core.bind_arrived(call, self.now))

    def abandon(self, call_id: int) -> None:
        call = self.calls.pop(call_id)
        self.assumed.pop(call.uid, None)
        self.perform(self.core.bind_abandoned(call_id, self.now))

    # --- effects -------------------------------------------------------------------------------------------------

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, AnswerBind):
                call = self.calls.pop(effect.call_id, None)
                assert call is not None, "answered twice, or nobody waits"
                pod = self.pods.get(call.uid)
                if effect.error:
                    self.assumed.pop(call.uid, None)
                elif pod is not None:
                    assert pod.spec.node_name == call.node, "success was answered for a pod that is not there"
            elif isinstance(effect, PostBindings):
                for binding in effect.bindings:
                    self.posted_to.setdefault(binding.uid, set()).add(binding.node)
                    self.sent[id(binding)] = self.now
                self.posts += effect.bindings
            elif isinstance(effect, Recheck):
                self.sent[id(effect)] = self.now
                self.rechecks.append(effect)
            elif isinstance(effect, EvictPods):
                for ref in effect.pods:
                    self.remove_pod(ref.uid)
            elif isinstance(effect, SetReservationStatus):
                current = self.reservations.get(effect.name)
                if current is not None and current.metadata.resource_version == effect.resource_version:
                    changed = copy(current)
                    changed.status = effect.status
                    self.put(changed)

    def answer_post(self, index: int, how: str) -> None:
        """bound, lost (processed, answer lost), ghost (answer lost, perhaps processed later), rejected, fenced."""
        binding = self.posts.pop(index)
        if how == "fenced" or self.sent[id(binding)] > binding.deadline - POST_TIMEOUT:
            outcome = Outcome.NOT_SENT
        elif how == "rejected":
            outcome = Outcome.REJECTED
        elif how == "ghost":
            self.ghosts.append(Ghost(binding, self.now + GHOST_LIFE))
            outcome = Outcome.UNKNOWN
        else:
            outcome = self._apply(binding)
            if how == "lost" and outcome is not Outcome.GONE:
                outcome = Outcome.UNKNOWN
        text = "" if outcome in (Outcome.BOUND, Outcome.ALREADY_THERE) else outcome.value
        self.perform(self.core.posted(binding.uid, binding.node, outcome, text, self.now))

    def haunt(self, index: int, *, applied: bool) -> None:
        ghost = self.ghosts.pop(index)
        if applied:
            self._apply(ghost.binding)

    def _apply(self, binding: Binding) -> Outcome:
        pod = self.pods.get(binding.uid)
        if pod is None:
            return Outcome.GONE
        if pod.spec.node_name:
            return Outcome.ALREADY_THERE if pod.spec.node_name == binding.node else Outcome.CONFLICT
        if pod.finished:
            return Outcome.CONFLICT
        bound = copy(pod)
        bound.spec.node_name = binding.node
        bound.status.phase = "Running"
        self.put(bound)
        if binding.node not in self.nodes:
            self.remove_pod(binding.uid)  # the pod garbage collector
        return Outcome.BOUND

    def answer_recheck(self, index: int, failure: str) -> None:
        """The shell reads live, feeds, and reports."""
        recheck = self.rechecks.pop(index)
        if not failure:
            for name in recheck.nodes:
                node = self.nodes.get(name)
                self._tell("node", name, copy(node) if node is not None else None)
            if recheck.pod_group is not None:
                group = self.groups.get(recheck.pod_group[1])
                self._tell("group", recheck.pod_group[1], copy(group) if group is not None else None)
            if recheck.reservation is not None:
                found = self.reservations.get(recheck.reservation[1])
                self._tell("reservation", recheck.reservation[1], copy(found) if found is not None else None)
        self.perform(self.core.recheck_done(recheck.gang, recheck.token, failure, self.now))

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            dues = [self.sent[id(each)] + POST_TIMEOUT for each in [*self.posts, *self.rechecks]]
            wakeup = self.core.next_wakeup()
            due = min([*dues, *([wakeup] if wakeup is not None else [])], default=until + 1)
            if due > until:
                break
            self.now = max(self.now, due)
            self._time_out()
            self.perform(self.core.tick(self.now))
            self._expire()
        self.now = until
        self._expire()

    def _time_out(self) -> None:
        """The client gives up on what was sent too long ago."""
        for binding in [each for each in self.posts if self.sent[id(each)] + POST_TIMEOUT <= self.now]:
            self.answer_post(self.posts.index(binding), "ghost")
        for recheck in [each for each in self.rechecks if self.sent[id(each)] + POST_TIMEOUT <= self.now]:
            self.answer_recheck(self.rechecks.index(recheck), "timeout")

    def _expire(self) -> None:
        self.ghosts = [ghost for ghost in self.ghosts if ghost.until > self.now]
        late = [call for call in self.calls.values() if call.deadline < self.now]
        assert not late, f"a call was not answered before kube-scheduler gave up: {late}"

    # --- what must hold ------------------------------------------------------------------------------------------

    def used(self) -> Counter[str]:
        used: Counter[str] = Counter()
        for pod in self.pods.values():
            if pod.spec.node_name and not pod.finished:
                used[pod.spec.node_name] += cpu_of(pod)
        return used

    def check(self) -> None:
        """Invariant 2, and the ledger agrees with itself."""
        for name, cpu in self.used().items():
            if name in self.nodes:
                assert cpu <= capacity(self.nodes[name]), f"node {name} was given {cpu} millicores"
        ledger = self.core._world.ledger
        for room in ledger.rooms.values():
            used = sum(charge.request.get("cpu", 0) for charge in room.charges.values())
            promised = sum(slot.pod_class.charge.get("cpu", 0) for slot in room.slots.values())
            assert room.used.get("cpu", 0) == used
            assert room.promised.get("cpu", 0) == promised
            assert room.free.get("cpu", 0) == room.allocatable.get("cpu", 0) - used - promised
        for gang in self.core._world.gangs.values():
            assert set(gang.slots) == {slot.id for slot in ledger.slots.values() if slot.gang == gang.key}
            assert gang.posting == sum(1 for member in gang.members.values() if member.posting)
            assert set(gang.held) == {uid for uid, member in gang.members.items() if member.call is not None}
            for role, ids in gang.free.items():
                assert all(not ledger.slots[i].uid and ledger.slots[i].role == role for i in ids)
        assert {slot.gang for slot in ledger.slots.values()} <= set(self.core._world.gangs)

    def quiet(self, rounds: int = 60) -> None:
        """No more faults: everything is delivered, every POST succeeds, the scheduler tries every pod each second."""
        if not self.leads:
            self.lead()
        for _ in range(rounds):
            self.deliver_all()
            for uid in self.pending():
                if uid not in self.pods or uid in self.assumed:
                    continue
                names = self.offered(uid)
                if names:
                    self.schedule(uid, names)
                while self.posts or self.rechecks or self.backlog:
                    self.deliver_all()
                    if self.rechecks:
                        self.answer_recheck(0, "")
                    if self.posts:
                        self.answer_post(0, "bound")
            self.pass_time(2.0)
            while self.posts or self.rechecks or self.backlog:
                self.deliver_all()
                if self.rechecks:
                    self.answer_recheck(0, "")
                if self.posts:
                    self.answer_post(0, "bound")
            self.check()


def cpu_of(pod: Pod) -> int:
    return pod_request(pod.spec).get("cpu", 0)


def capacity(node: Node) -> int:
    return amount("cpu", (node.status.allocatable or {})["cpu"])
