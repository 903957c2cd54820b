"""Everything the core knows, in one place, and the outbox of effects. No rules: those are in the modules around it."""

from collections import Counter
from collections.abc import Iterable

import msgspec

from extender.config import CoreConfig
from extender.effects import AnswerBind, BindCall, Binding, Effect, PostBindings
from extender.eligible import Eligible
from extender.gangs import Gang, Member
from extender.ledger import Ledger, Slot
from extender.pod_facts import PodFacts
from extender.timers import Timer, Timers
from kube.objects.classes import PriorityClass, RuntimeClass
from kube.objects.pod_class import PodClass
from kube.objects.pod_group import PodGroup, PodGroupStatus
from kube.objects.reservation import GangReservation, ReservationStatus
from kube.objects.resource_quota import ResourceQuota


class Held(msgspec.Struct):
    """A reservation as the core sees it, by gang key."""

    reservation: GangReservation
    invalid: str = ""
    """What is wrong with its templates; "" if they can be planned."""
    renewals: int = 0
    dispatched_from: float | None = None
    """When it was first seen Dispatched: the landing deadline counts from here."""
    wish: ReservationStatus | None = None
    """The status that was asked for and is not seen yet."""
    superseded: bool = False
    """A reservation of the same id with a higher epoch exists."""

    @property
    def refused(self) -> bool:
        wish = self.wish or self.reservation.status
        return wish.state == "Refused"


class World:
    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.deciding = False
        self.ledger = Ledger()
        self.eligible = Eligible(self.ledger)
        self.timers = Timers()
        self.pods: dict[str, PodFacts] = {}
        self.pod_names: dict[tuple[str, str], str] = {}
        """(namespace, name) -> UID of the pod that has the name now."""
        self.tombstones: dict[str, float] = {}
        """UIDs that were deleted -> until when a late event of theirs is ignored."""
        self.gangs: dict[str, Gang] = {}
        self.pod_groups: dict[str, PodGroup] = {}
        """By `namespace/name`."""
        self.group_writes: dict[str, tuple[PodGroupStatus, ...]] = {}
        """PodGroup -> the last statuses that were asked for."""
        self.group_of_hub: dict[str, str] = {}
        """Gang of the hub -> its PodGroup, there or not ..."""
        self.hub_gangs: dict[str, dict[str, None]] = {}
        """... and back: attempts of a job share it."""
        self.group_writers: set[str] = set()
        """PodGroups whose status somebody else writes."""
        self.reservations: dict[str, Held] = {}
        """By gang key."""
        self.quotas: dict[tuple[str, str], ResourceQuota] = {}
        self.priority_classes: dict[str, PriorityClass] = {}
        self.runtime_classes: dict[str, RuntimeClass] = {}
        self.hub_seen: float | None = None
        """Last renewal of the hub's Lease (PROTOCOL rule 12)."""
        self.gate: dict[str, BindCall] = {}
        """Pod UID -> call of a plain pod, or of one not known yet, that waits for the watch or for room."""
        self.plain_posting: dict[str, BindCall | None] = {}
        """Pod UID -> call of a plain pod whose Binding is in flight (None: the client has gone)."""
        self.posts_failed: dict[str, int] = {}
        """Pod UID -> failed POSTs of its present Binding: paces the retries."""
        self.in_doubt: set[str] = set()
        """UIDs whose Binding had no answer and whose call was answered: charged until the watch settles it."""
        self.dirty: dict[str, None] = {}
        """Gangs to be reviewed before the present call returns."""
        self.hungry: dict[str, None] = {}
        """Gangs that want more room than they have."""
        self.last_question: float = 0.0
        """When kube-scheduler last asked anything: it is at work."""
        self.schedulers: set[str] = set()
        """schedulerName of the profiles that have asked."""
        self.gained: set[str] = set()
        """Nodes on which room became free since binds and blocked gangs were last looked at."""
        self.claims: dict[str, frozenset[str]] = {}
        """Gang key -> nodes it has a claim on."""
        self.claim_rest: float = 0.0
        """No new claim before this second."""
        self.wake_from: float = 0.0
        """The last gang to be woken is woken then."""
        self.judge_from: float = 0.0
        """Before this second, just after a take-over, no dispatched gang is refused for want of room (rule 14)."""
        self.counters: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self._outbox: list[Effect] = []
        self.ledger.on_gain = self.gained.add

        self.reports = 0
        """Raised by what the capacity report shows beside the ledger."""

    # --- outbox --------------------------------------------------------------------------------------------------

    def emit(self, effect: Effect) -> None:
        self._outbox.append(effect)

    def drain(self) -> list[Effect]:
        effects, self._outbox = self._outbox, []
        return effects

    def answer(self, call: BindCall | None, error: str = "") -> None:
        if call is not None:
            self.emit(AnswerBind(call.id, error))

    def post(self, bindings: Iterable[Binding], gang: str = "") -> None:
        self.emit(PostBindings(bindings=tuple(bindings), gang=gang))

    # --- Bindings in doubt ---------------------------------------------------------------------------------------

    def doubt(self, uid: str, now: float) -> None:
        """Sent, never answered: the room stays charged until the watch settles it, or a long time has passed."""
        self.in_doubt.add(uid)
        self.timers.set(Timer.UNKNOWN, uid, now + self.config.unknown_binding_hold)

    def settled(self, uid: str) -> None:
        self.in_doubt.discard(uid)
        self.timers.clear(Timer.UNKNOWN, uid)

    # --- gangs ---------------------------------------------------------------------------------------------------

    def touch(self, key: str) -> None:
        """Have the gang reviewed before the present call returns."""
        if key in self.gangs:
            self.dirty[key] = None

    def slots_of(self, gang: Gang) -> list[Slot]:
        return [self.ledger.slots[slot_id] for slot_id in gang.slots]

    def slot_of(self, member: Member) -> Slot | None:
        return self.ledger.slots.get(member.slot) if member.slot else None

    def promise(self, gang: Gang, role: str, pod_class: PodClass, node: str) -> Slot:
        slot = self.ledger.promise(gang.key, role, pod_class, node, gang.priority)
        gang.slots[slot.id] = None
        gang.free.setdefault(role, {})[slot.id] = None
        return slot

    def give(self, gang: Gang, slot: Slot, member: Member) -> None:
        """A free slot becomes a member's; the slot it had before is free again."""
        self.take_back(gang, member)
        slot.uid = member.ref.uid
        member.slot = slot.id
        gang.free[slot.role].pop(slot.id, None)
        gang.retally(member)

    def take_back(self, gang: Gang, member: Member) -> None:
        """The member's slot, if it has one, is free for any of its role."""
        slot = self.slot_of(member)
        member.slot = 0
        if slot is not None:
            slot.uid = ""
            gang.free.setdefault(slot.role, {})[slot.id] = None
        gang.retally(member)

    def withdraw(self, gang: Gang, slot: Slot) -> None:
        """Give a promise back, whoever had it."""
        member = gang.members.get(slot.uid)
        if member is not None and member.slot == slot.id:
            member.slot = 0
            gang.retally(member)
        gang.slots.pop(slot.id, None)
        gang.free.get(slot.role, {}).pop(slot.id, None)
        self.ledger.withdraw(slot.id)

    def withdraw_all(self, gang: Gang) -> None:
        for slot in self.slots_of(gang):
            self.withdraw(gang, slot)

    def break_slot(self, slot: Slot, error: str) -> None:
        """A promise breaks: a call that is held on it fails, for it names that node; the gang is looked at anew."""
        gang = self.gangs[slot.gang]
        member = gang.members.get(slot.uid)
        self.counters["broken_promises"] += 1
        self.withdraw(gang, slot)
        gang.stale = True
        if member is not None and not member.posting:
            self.fail_call(gang, member, error)
        self.touch(gang.key)

    def fail_call(self, gang: Gang, member: Member, error: str) -> None:
        """Answer a member's held call with an error; kube-scheduler brings the pod back by its error back-off."""
        if member.call is not None:
            self.answer(member.call, error)
            member.call = None
            gang.retally(member)

    def sizes(self) -> dict[str, int]:
        """Entries of everything that grows with what is there (DESIGN invariant 8)."""
        return {
            "pods": len(self.pods),
            "tombstones": len(self.tombstones),
            "gangs": len(self.gangs),
            "members": sum(len(gang.members) for gang in self.gangs.values()),
            "pod_groups": len(self.pod_groups),
            "group_writes": len(self.group_writes) + len(self.group_writers),
            "group_of_hub": len(self.group_of_hub) + len(self.hub_gangs),
            "reservations": len(self.reservations),
            "rooms": len(self.ledger.rooms),
            "charges": len(self.ledger.charges),
            "slots": len(self.ledger.slots),
            "nominations": len(self.ledger.nominations),
            "timers": len(self.timers),
            "gate": len(self.gate),
            "posting": len(self.plain_posting),
            "doubts": len(self.in_doubt),
            "hungry": len(self.hungry),
            "claims": len(self.claims),
        }
