"""A member job's status -> the hub job's status, and what it proves.

Unknown is never finished (K11): an absent, empty or malformed status says nothing, and a final state is believed only
from a condition Succeeded or Failed whose status is "True".
"""

from typing import Literal

import msgspec

from dispatcher.jobs import Job
from kube.objects.meta import Condition, Json

State = Literal["", "Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What a member's job says of itself."""

    state: State
    """"" if it says nothing yet."""
    message: str = ""
    reason: str = ""
    completion_time: str = ""
    active: dict[str, int] = {}
    """role name -> pods active (Running and not terminating)."""
    succeeded: dict[str, int] = {}
    failed: dict[str, int] = {}

    @property
    def finished(self) -> bool:
        return self.state in ("Succeeded", "Failed")


def observe(member_job: Json) -> Observed:
    """Never raises for odd input."""
    raise NotImplementedError


def hub_status(member_status: Json | None, job: Job, now: str) -> Json:
    """The hub job's status: the member's conditions re-ordered so that the last element is the true state (kubectl's
    STATE column prints `.status.conditions[-1:].type`), replicaStatuses, startTime, completionTime, all always there
    where the schema wants them. Without a member's status: Created. `now`: RFC 3339, only for a new condition."""
    raise NotImplementedError


def initial_status(job: Job, now: str) -> Json:
    """Status of a job that muster has taken: condition Created."""
    raise NotImplementedError


def with_condition(status: Json, type_: str, status_value: str, reason: str, message: str, now: str) -> Json:
    """Another condition of the hub's own (Queuing) put before the last element."""
    raise NotImplementedError


def running_condition(observed: Observed, job: Job, previous: Condition | None, now: str) -> Condition:
    """The binding's Running condition: True only when every required pod of each role is active or has succeeded."""
    raise NotImplementedError
