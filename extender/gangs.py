"""The life of a gang: its facts, its states, and the one table of transitions.

A gang is keyed by `namespace/name` (a user's PodGroup or ACK labels) or `hub:<reservation name>` (one attempt of a
hub's job: every epoch is a gang of its own). Facts (members, slots, calls) are kept by the modules that own the rules;
the state says which rule is at work and is what metrics and operators see.
"""

from enum import StrEnum

import msgspec

from extender.effects import BindCall, PodRef
from extender.shortfall import Shortfall
from kube.objects.pod_class import PodClass


class State(StrEnum):
    ABSENT = "absent"
    """Nothing known (any more); the gang is forgotten."""
    INCOMPLETE = "incomplete"
    """Members are missing; no room is held."""
    ASSEMBLING = "assembling"
    """Members are missing; room for all of them is held for a short time."""
    BLOCKED = "blocked"
    """All members are known and do not fit; no room is held."""
    PLANNED = "planned"
    """Every missing member has a slot; no call is held."""
    WAITING = "waiting"
    """As planned, with bind calls held at the barrier."""
    COMMITTING = "committing"
    """The whole quorum is there: re-checked, then posted at once."""
    LANDED = "landed"
    """Every role's minimum and minMember are bound (finished members count)."""
    HEALING = "healing"
    """Some are bound, fewer than the minimum: the missing are brought back within a stated time."""
    EVICTING = "evicting"
    """Given up: what is bound is evicted whole."""


class Happening(StrEnum):
    """Events of a gang's life."""

    SEEN = "seen"
    """A member, its PodGroup or its reservation became known."""
    STANDINS = "standins"
    """Room was found for the seen members and stand-ins for the unseen."""
    PLAN = "plan"
    """Room was found for every missing member."""
    NO_ROOM = "no room"
    """All are known, and no plan exists."""
    DROPPED = "dropped"
    """The room held was given back (a hold expired, members vanished, admission withdrawn)."""
    HELD = "held"
    """A call waits at the barrier."""
    EMPTIED = "emptied"
    """No call waits at the barrier any more."""
    QUORUM = "quorum"
    """Every minimum is bound or waiting."""
    STOPPED = "stopped"
    """A commit ended, or was called off, with nothing bound."""
    HALF = "half"
    """Some members are bound, fewer than the minimum, and no commit is under way."""
    WHOLE = "whole"
    """Every minimum is bound."""
    GIVEN_UP = "given up"
    """The time to heal is over."""
    GONE = "gone"
    """Neither members nor a reservation or PodGroup with members are left."""


_S, _H = State, Happening

TRANSITIONS: dict[tuple[State, Happening], State] = {
    (_S.ABSENT, _H.SEEN): _S.INCOMPLETE,
    # Room is looked for.
    (_S.INCOMPLETE, _H.STANDINS): _S.ASSEMBLING,
    (_S.BLOCKED, _H.STANDINS): _S.ASSEMBLING,
    (_S.PLANNED, _H.STANDINS): _S.ASSEMBLING,
    (_S.WAITING, _H.STANDINS): _S.ASSEMBLING,
    (_S.INCOMPLETE, _H.PLAN): _S.PLANNED,
    (_S.ASSEMBLING, _H.PLAN): _S.PLANNED,
    (_S.BLOCKED, _H.PLAN): _S.PLANNED,
    (_S.INCOMPLETE, _H.NO_ROOM): _S.BLOCKED,
    (_S.ASSEMBLING, _H.NO_ROOM): _S.BLOCKED,
    (_S.PLANNED, _H.NO_ROOM): _S.BLOCKED,
    (_S.WAITING, _H.NO_ROOM): _S.BLOCKED,
    # Room is given back.
    (_S.ASSEMBLING, _H.DROPPED): _S.INCOMPLETE,
    (_S.PLANNED, _H.DROPPED): _S.INCOMPLETE,
    (_S.WAITING, _H.DROPPED): _S.INCOMPLETE,
    (_S.BLOCKED, _H.DROPPED): _S.INCOMPLETE,
    # The barrier. An assembling gang keeps its state while calls wait: what bounds it is the assembling hold.
    (_S.PLANNED, _H.HELD): _S.WAITING,
    (_S.WAITING, _H.EMPTIED): _S.PLANNED,
    (_S.PLANNED, _H.QUORUM): _S.COMMITTING,
    (_S.WAITING, _H.QUORUM): _S.COMMITTING,
    (_S.ASSEMBLING, _H.QUORUM): _S.COMMITTING,
    (_S.COMMITTING, _H.STOPPED): _S.PLANNED,
    (_S.COMMITTING, _H.HELD): _S.WAITING,
    # Whole, half, and what the API shows after a restart.
    **{(state, _H.WHOLE): _S.LANDED for state in State if state not in (_S.EVICTING, _S.LANDED)},
    (_S.COMMITTING, _H.HALF): _S.HEALING,
    (_S.LANDED, _H.HALF): _S.HEALING,
    (_S.ABSENT, _H.HALF): _S.HEALING,
    (_S.INCOMPLETE, _H.HALF): _S.HEALING,
    (_S.ASSEMBLING, _H.HALF): _S.HEALING,
    (_S.BLOCKED, _H.HALF): _S.HEALING,
    (_S.PLANNED, _H.HALF): _S.HEALING,
    (_S.WAITING, _H.HALF): _S.HEALING,
    # The last bound member is gone: the gang starts over.
    (_S.LANDED, _H.DROPPED): _S.INCOMPLETE,
    (_S.HEALING, _H.DROPPED): _S.INCOMPLETE,
    (_S.HEALING, _H.GIVEN_UP): _S.EVICTING,
    (_S.EVICTING, _H.DROPPED): _S.INCOMPLETE,
    **{(state, _H.GONE): _S.ABSENT for state in State},
}
"""A pair that is not here leaves the state as it is: the event is late, repeated or already answered by a stronger
state (a plan for a landed gang, a held call of an evicting one). The rules that act on events look at the state
first, so nothing else happens either."""

HOLDS_ROOM = frozenset({_S.ASSEMBLING, _S.PLANNED, _S.WAITING, _S.COMMITTING})
"""States in which every missing member has a slot."""
HAS_BOUND = frozenset({_S.LANDED, _S.HEALING, _S.EVICTING})


class HubIdentity(msgspec.Struct, frozen=True):
    hub_id: str
    job_id: str
    epoch: int


class Role(msgspec.Struct):
    """Members that count together. A user's gang has one role per pod class, without a minimum of its own."""

    name: str
    pod_class: PodClass
    count: int = 0
    """Members wanted by a reservation; 0 for a user's gang, whose pods say."""
    min_count: int = 0
    compared: bool = False
    """`pod_class` is that of a real pod, not of a template."""


class Standing(StrEnum):
    """How a member counts."""

    OUT = "out"
    """Gated, on its way out, or gone: counts for nothing."""
    MISSING = "missing"
    """Needs a place and a bind call."""
    WAITING = "waiting"
    """Its bind call is held, or its Binding is being posted."""
    SERVED = "served"
    """Bound, or has run to its end."""


class Member(msgspec.Struct):
    """One pod of a gang, by UID. After a change of any field: `Gang.retally`."""

    ref: PodRef
    role: str
    pod_class: PodClass
    node: str = ""
    """Where it is bound (by the watch or a confirmed POST)."""
    finished: bool = False
    succeeded: bool = False
    terminating: bool = False
    gated: bool = False
    slot: int = 0
    """Id of its slot, 0 for none."""
    charged: bool = False
    """The ledger holds a charge of it: bound, or its Binding on its way."""
    call: BindCall | None = None
    """The held bind call."""
    posting: bool = False
    """A Binding of it is in flight or about to be sent again."""
    posts: int = 0
    """Failed POSTs of the present commit: paces the retries."""
    asked: bool = False
    """kube-scheduler asked about it since the present plan was made ..."""
    ever_asked: bool = False
    """... or before."""
    asked_at: float = 0.0
    """When it did so last."""
    unschedulable: str = ""
    """What kube-scheduler said of it last."""
    counted: tuple[Standing, str, bool, bool, bool, bool] | None = None
    """What `Gang.retally` counted it as."""

    @property
    def standing(self) -> Standing:
        if self.finished:
            return Standing.SERVED
        if self.terminating:
            return Standing.OUT
        if self.node:
            return Standing.SERVED
        if self.gated:
            return Standing.OUT
        return Standing.WAITING if self.call is not None or self.posting else Standing.MISSING


class Gang(msgspec.Struct):
    key: str
    namespace: str
    name: str
    hub: HubIdentity | None = None
    needs_group: bool = False
    """By label scheduling.x-k8s.io/pod-group: nothing happens without the PodGroup object."""
    state: State = State.ABSENT
    state_since: float = 0.0
    born: float = 0.0
    """First sight in this process."""
    created: str = ""
    """creationTimestamp of the reservation or of the first pod: age that survives a restart."""
    min_member: int = 0
    priority: int = 0
    prefer_topology_key: str = ""
    schedule_timeout: float = 0.0
    label_keys: frozenset[str] = frozenset()
    """Pod labels that rules of members look at: kept in the classes of all members."""

    roles: dict[str, Role] = {}
    role_of_class: dict[PodClass, str] = {}
    """For a user's gang."""
    standin_role: str = ""
    """For a user's gang: members not seen yet are taken to look like this role."""
    members: dict[str, Member] = {}
    slots: dict[int, None] = {}
    """Ids in the ledger, in the order they were made."""
    free: dict[str, dict[int, None]] = {}
    """Role -> ids of slots that nobody has yet."""
    held: dict[str, None] = {}
    """UIDs whose bind call is held."""
    refused: dict[str, None] = {}
    """UIDs that kube-scheduler was refused for, or whose bind failed: to be woken once there is room."""

    tallies: dict[Standing, dict[str, int]] = {}
    """Standing -> role -> members."""
    uncovered: dict[str, int] = {}
    """Role -> members that need a place and have neither slot nor charge."""
    departed: dict[str, int] = {}
    """Role -> members that succeeded and whose pod object is gone: served for as long as the gang lives."""
    running: int = 0
    """Members bound, neither finished nor on their way out."""
    present: int = 0
    """Members bound and not finished: what an eviction has to end."""
    posting: int = 0
    """Members whose Binding is in flight."""

    asked: bool = False
    """kube-scheduler has asked about a member: only then a user's gang holds room."""
    turned_away: bool = False
    """Or kube-scheduler found no node for a member that passes its own filters: then nobody asks here, and yet the
    gang waits for room, and for its turn to claim nodes."""
    stale: bool = True
    """What it needs and what it has must be compared member by member."""
    label_minimum: int = 0
    """Largest pod-group.scheduling.sigs.k8s.io/min-available of the members."""
    standins_until: float | None = None
    """Room for members not seen yet may be held until then."""
    uids_seen: int = 0
    assembled_uids: int = -1
    """`uids_seen` when assembling last failed; a new member allows another try."""
    rechecking: bool = False
    token: int = 0
    """Of the last commit begun; a recheck that answers another token is late."""
    waits_from: float | None = None
    """Since when it has had no room: who waited longest may claim nodes."""
    detail: str = ""
    """Why it has no room, in numbers, for conditions and events."""
    tried_at: int = -1
    """Ledger gains when its last plan failed."""
    tried_revision: int = -1
    tried_time: float = 0.0
    retry_pause: float = 0.0
    """It is planned anew not before `tried_time` + this; grows while plans fail."""
    shortfall: Shortfall | None = None
    """Of the last plan."""
    revision: int = 0
    """Raised when members or requirements change."""
    saw_end: bool = False
    """A member that was bound has run to its end, and this was seen (PROTOCOL rule 9) ..."""
    vanished: bool = False
    """... or was gone without that."""
    ended_ok: bool = False
    """The member whose success is the job's success has succeeded."""
    avoid: dict[tuple[str, str], float] = {}
    """(role, node) -> until: kube-scheduler does not offer it, for reasons the planner does not model."""
    strikes: dict[str, int] = {}
    """Node -> times a slot there was not offered."""

    def advance(self, happening: Happening, now: float) -> bool:
        """Apply the table; whether the state changed."""
        after = TRANSITIONS.get((self.state, happening), self.state)
        if after is self.state:
            return False
        self.state = after
        self.state_since = now
        return True

    def start_over(self) -> None:
        """The process does not decide any more: forget how far things had come, keep the facts."""
        self.state = State.ABSENT
        self.asked = False
        self.stale = True
        self.standins_until = None
        self.assembled_uids = -1
        self.rechecking = False
        self.token += 1
        self.tried_at = -1
        self.shortfall = None
        self.refused.clear()
        self.avoid.clear()
        self.strikes.clear()

    # --- counting ------------------------------------------------------------------------------------------------

    def retally(self, member: Member) -> None:
        """Bring the counts in line with a member that has changed. O(1)."""
        self._discount(member)
        standing = member.standing
        needs = standing in (Standing.MISSING, Standing.WAITING)
        counted = (
            standing,
            member.role,
            needs and not member.slot and not member.charged,
            member.node != "" and not member.finished and not member.terminating,
            member.node != "" and not member.finished,
            member.posting,
        )
        member.counted = counted
        self._count(counted, 1)
        if member.call is not None:
            self.held[member.ref.uid] = None
        else:
            self.held.pop(member.ref.uid, None)

    def drop(self, member: Member) -> None:
        """The pod is gone."""
        self._discount(member)
        if member.succeeded:
            self.departed[member.role] = self.departed.get(member.role, 0) + 1
        uid = member.ref.uid
        self.members.pop(uid, None)
        self.held.pop(uid, None)
        self.refused.pop(uid, None)

    def of_standing(self, standing: Standing, role: str | None = None) -> int:
        count = 0
        for per_role in (self.tallies.get(standing), self.departed if standing is Standing.SERVED else None):
            if per_role:
                count += sum(per_role.values()) if role is None else per_role.get(role, 0)
        return count

    def seen(self, role: str | None = None) -> int:
        """Members that count towards completeness."""
        return (
            self.of_standing(Standing.SERVED, role)
            + self.of_standing(Standing.WAITING, role)
            + self.of_standing(Standing.MISSING, role)
        )

    def minimum_met(self, *, with_waiting: bool = False) -> bool:
        """Every role's minimum and minMember are served (or waiting)."""
        total = self.of_standing(Standing.SERVED)
        if with_waiting:
            total += self.of_standing(Standing.WAITING)
        if total < max(1, self.min_member):
            return False
        for role in self.roles.values():
            if role.min_count:
                count = self.of_standing(Standing.SERVED, role.name)
                if with_waiting:
                    count += self.of_standing(Standing.WAITING, role.name)
                if count < role.min_count:
                    return False
        return True

    @property
    def complete(self) -> bool:
        """All members that are needed exist."""
        return self.seen() >= max(1, self.min_member)

    @property
    def busy(self) -> bool:
        """A commit is under way."""
        return self.rechecking or self.posting > 0

    def _discount(self, member: Member) -> None:
        if member.counted is not None:
            self._count(member.counted, -1)
            member.counted = None

    def _count(self, counted: tuple[Standing, str, bool, bool, bool, bool], step: int) -> None:
        standing, role, uncovered, running, present, posting = counted
        per_role = self.tallies.setdefault(standing, {})
        per_role[role] = per_role.get(role, 0) + step
        if uncovered:
            self.uncovered[role] = self.uncovered.get(role, 0) + step
        self.running += step * running
        self.present += step * present
        self.posting += step * posting
