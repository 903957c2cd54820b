"""The life of a gang: its facts, its states, and the one table of transitions.

A gang is keyed by `namespace/name` (a user's PodGroup or ACK labels) or `hub:<reservation name>` (one attempt of a
hub's job: every epoch is a gang of its own). Facts (members, slots, calls) are kept by the modules that own the rules;
the state says which rule is at work and is what metrics and operators see.
"""

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from extender.effects import BindCall, PodRef
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
    """A commit ended with nothing bound."""
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
    (_S.COMMITTING, _H.NO_ROOM): _S.BLOCKED,
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
    count: int
    """Members wanted; for a user's gang the number seen."""
    min_count: int = 0
    compared: bool = False
    """`pod_class` is that of a real pod, not of a template or a stand-in."""


class Member(msgspec.Struct):
    """One pod of a gang, by UID."""

    ref: PodRef
    role: str
    pod_class: PodClass
    node: str = ""
    """Where it is bound (by the watch or a confirmed POST)."""
    finished: bool = False
    succeeded: bool = False
    terminating: bool = False
    confirmed: bool = False
    """Seen by the watch, not only in a request."""
    gated: bool = False
    slot: int = 0
    """Id of its slot, 0 for none."""
    call: BindCall | None = None
    """The held bind call."""
    posting: bool = False
    """A Binding of it is in flight."""
    posts: int = 0
    """Failed POSTs of the present commit: paces the retries."""

    @property
    def served(self) -> bool:
        """Counts for the minimum: runs, or has run to its end."""
        return self.finished or (self.node != "" and not self.terminating)

    @property
    def missing(self) -> bool:
        """Needs a place: not bound, not finished, not on its way out."""
        return not (self.finished or self.node or self.terminating)


class Gang(msgspec.Struct):
    key: str
    namespace: str
    name: str
    hub: HubIdentity | None = None
    state: State = State.ABSENT
    state_since: float = 0.0
    born: float = 0.0
    """First sight in this process: age among equals."""
    created: str = ""
    """creationTimestamp of the PodGroup, reservation or first pod: age that survives a restart."""
    min_member: int = 0
    priority: int = 0
    roles: dict[str, Role] = {}
    members: dict[str, Member] = {}
    slots: dict[int, None] = {}
    """Ids in the ledger, in the order they were made."""
    hold_from: float | None = None
    """When the present hold began (first call or plan): scheduleTimeoutSeconds counts from here."""
    schedule_timeout: float = 0.0
    assembled_uids: int = 0
    """Number of member UIDs ever seen when assembling last failed; a larger number allows another try."""
    uids_seen: int = 0
    refusal: str = ""
    """Why it was not planned, constant while nothing changes."""
    detail: str = ""
    """The same in numbers, for conditions and events."""
    tried_at: tuple[int, int] = (-1, -1)
    """(ledger gains, own revision) of the last plan that failed."""
    revision: int = 0
    """Raised when members or requirements change."""
    token: int = 0
    """Of the commit under way; a recheck that answers another token is late."""
    ever_bound: dict[str, bool] = {}
    """UID -> seen at its end, of members that were ever bound (PROTOCOL rule 9)."""
    ended_ok: bool = False
    """A member whose success is the job's success has succeeded."""
    avoid: dict[tuple[str, str], float] = {}
    """(role, node) -> until: kube-scheduler did not offer it, for reasons the planner does not model."""
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

    @property
    def hub_owned(self) -> bool:
        return self.hub is not None

    def of_role(self, role: str) -> Iterator[Member]:
        return (member for member in self.members.values() if member.role == role)

    def counts(self, *, with_waiting: bool) -> tuple[int, dict[str, int]]:
        """Members served, in all and per role; `with_waiting` adds those whose call is held or being posted."""
        total = 0
        per_role: dict[str, int] = {}
        for member in self.members.values():
            if member.served or (with_waiting and member.missing and (member.call is not None or member.posting)):
                total += 1
                per_role[member.role] = per_role.get(member.role, 0) + 1
        return total, per_role

    def minimum_met(self, *, with_waiting: bool = False) -> bool:
        """Every role's minimum and minMember are served (or waiting)."""
        total, per_role = self.counts(with_waiting=with_waiting)
        if total < max(1, self.min_member):
            return False
        return all(per_role.get(role.name, 0) >= role.min_count for role in self.roles.values())

    @property
    def any_bound(self) -> bool:
        return any(member.node and not member.finished for member in self.members.values())

    @property
    def seen(self) -> int:
        """Members that count towards completeness."""
        return sum(1 for member in self.members.values() if member.served or member.missing)
