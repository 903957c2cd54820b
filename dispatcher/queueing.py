"""In which order waiting jobs are tried, and which of them an event can help.

Jobs with the same need in the same queue form one class: if its first job does not fit, none of it does. A class that
was tried and did not fit is parked under what it lacks, sorted by how much of it it needs; an event wakes only the
classes that the freed amount can help. So one job that fits is found at once behind 10,000 that do not (F9, F10).
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from dispatcher.quota import Ask, Ledger
from kube.objects.binding import ClusterReason, Component

QueuePolicy = Literal["Priority", "Block", "Intelligent"]
"""Priority (and "Round"): what does not fit is skipped. Block: the head blocks its queue. Intelligent: a job of at
least `threshold` priority blocks, lower ones are skipped."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    binding_id: str
    namespace: str
    name: str
    ask: Ask | None
    """None: gang mode, no quota; such jobs share one queue of their own, ()."""
    components: tuple[Component, ...]
    min_member: int
    priority: int
    queued_at: str
    """RFC 3339 with microseconds; compared as text."""
    constraint: str = ""
    """Whatever else makes two jobs unlike for placement (policy, templates' selectors, exclusions): a digest."""

    @property
    def queue(self) -> tuple[str, ...]:
        return self.ask.path if self.ask else ()


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    policy: QueuePolicy = "Priority"
    threshold: int = 4
    priority: int = 0
    """Queues of higher priority are tried first among equals."""


class Pending:
    """All waiting jobs. Mutable, owned by one loop; ids are binding ids."""

    def put(self, waiting: Waiting) -> None:
        """Add, or replace after an edit (K18: priority edits re-order)."""
        raise NotImplementedError

    def discard(self, binding_id: str) -> None:
        """Admitted, deleted or held; unknown ids are fine (K19)."""
        raise NotImplementedError

    def get(self, binding_id: str) -> Waiting | None:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def configure(self, queue: tuple[str, ...], settings: QueueSettings) -> None:
        raise NotImplementedError

    def next(self, ledger: Ledger) -> Waiting | None:
        """The job to try now: queues by how far below their min, then priority, then age. It passes quota at this
        moment and is not parked. Jobs met on the way that quota blocks are parked with that reason. The caller then
        either admits it (charge, `discard`) or calls `no_room`; it is returned again otherwise."""
        raise NotImplementedError

    def no_room(self, binding_id: str, short: Mapping[str, str], reasons: tuple[ClusterReason, ...] = ()) -> None:
        """No member holds it: park its class. `short`: cluster -> resource that was lacking ("" or missing: any event
        of that cluster wakes it), Choice.short."""
        raise NotImplementedError

    def quota_freed(self, ledger: Ledger, path: tuple[str, ...]) -> int:
        """Use was released at `path`: wakes the classes that wait for any node on it and now fit there. Returns how many
        classes woke."""
        raise NotImplementedError

    def room_freed(self, cluster: str, free: Mapping[str, int] | None = None) -> int:
        """The member reports more room, came back or changed: wakes the classes that it can help. `free`: its total
        free amounts; None wakes all that wait for it, and all that no member was named for."""
        raise NotImplementedError

    def wake_all(self) -> int:
        """Tree, policy or membership changed."""
        raise NotImplementedError

    def reason(self, binding_id: str) -> tuple[tuple[ClusterReason, ...], str]:
        """(per cluster, quota sentence) why it waits; ((), "") if it has not been tried yet."""
        raise NotImplementedError

    def positions(self, queue: tuple[str, ...]) -> list[Waiting]:
        """The queue's jobs in order, for Queue.status.queueItemDetails and `amc get -o wide`."""
        raise NotImplementedError

    def oldest_without_room(self) -> Waiting | None:
        """The one that has waited longest of those that quota admits and no member holds, higher priority first."""
        raise NotImplementedError


class ClaimSettings(msgspec.Struct, frozen=True, kw_only=True):
    after: float = 300.0
    """Seconds a gang has waited for room alone before it may claim."""
    hold: float = 600.0
    """Seconds a claim may last."""
    pause: float = 300.0
    """Seconds without a claim in that member afterwards."""


class Claims:
    """One bounded claim per member. Seconds on one monotonic clock."""

    def __init__(self, settings: ClaimSettings = ClaimSettings()) -> None:
        raise NotImplementedError

    def grant(self, binding_id: str, cluster: str, waited: float, now: float) -> bool:
        """Whether this job may claim this member now; remembered if so. Idempotent while it holds."""
        raise NotImplementedError

    def end(self, binding_id: str, now: float) -> None:
        """It landed, went elsewhere or was deleted."""
        raise NotImplementedError

    def expired(self, now: float) -> list[tuple[str, str]]:
        """(binding id, cluster) of claims past `hold`; ended by this call."""
        raise NotImplementedError
