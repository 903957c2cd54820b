"""In which order waiting jobs are tried, and which of them an event can help.

Jobs with the same need in the same queue form one class: if its first job does not fit, none of it does. A class that
was tried and did not fit is parked under what it lacks; an event wakes only classes that it can help. So one job that
fits is found at once behind 10,000 that do not (F9, F10).
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from dispatcher.quota import Ask, Blocked, Ledger
from dispatcher.quota_tree import NodePath, ancestors
from dispatcher.room_index import RoomIndex, hardest
from kube.objects.binding import ClusterReason, Component
from kube.objects.capacity import NodeShape

QueuePolicy = Literal["Priority", "Block", "Intelligent"]
"""Priority: what does not fit is skipped. Block: the queue's first job blocks its queue. Intelligent: it does if its
priority is at least the threshold, else it is skipped."""

ClassKey = tuple[object, ...]
SortKey = tuple[int, bool, str, str, str, str]
"""Priority (highest first), non-preemptible first, age, namespace, name, id: Kube Queue's order in a queue."""


def hand_made_key(name: str) -> NodePath:
    """Where `Pending` keeps a hand-made queue: no path of a tree, because there every node has a name."""
    return ("", name)


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
    hand_made: str = ""
    """Name of the hand-made queue it waits in; "": its quota's own."""
    constraint: str = ""
    """Whatever else makes two jobs unlike for placement (policy, templates' demands, exclusions): a digest."""

    @property
    def queue(self) -> NodePath:
        if self.hand_made:
            return hand_made_key(self.hand_made)
        return self.ask.path if self.ask else ()

    @property
    def quota(self) -> NodePath:
        return self.ask.path if self.ask else ()

    @property
    def sort_key(self) -> SortKey:
        preemptible = self.ask.preemptible if self.ask else True
        return (-self.priority, preemptible, self.queued_at, self.namespace, self.name, self.binding_id)

    @property
    def class_key(self) -> ClassKey:
        """Plain values only, so that keys compare."""
        amounts = tuple(sorted(self.ask.amounts.items())) if self.ask else ()
        needs = tuple((c.name, c.replicas, c.min_replicas, tuple(sorted(c.request.items()))) for c in self.components)
        preemptible = self.ask.preemptible if self.ask else True
        return (self.queue, self.quota, amounts, preemptible, needs, self.min_member, self.constraint)


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    policy: QueuePolicy = "Priority"
    threshold: int = 4
    priority: int = 0
    """Queues of higher priority are tried first among those equally far from their min."""


DEFAULTS = QueueSettings()


class _Class:
    """Jobs of equal need in one queue."""

    __slots__ = ("asked", "clusters", "jobs", "key", "lacks_room", "lot", "parked", "queue", "quota_reason", "reasons")

    def __init__(self, key: ClassKey, queue: NodePath) -> None:
        self.key = key
        self.queue = queue
        self.jobs: list[SortKey] = []
        self.parked = False
        self.lot: tuple[NodePath, str, str] | None = None
        """Where it waits for quota: node, resource, bound."""
        self.asked = 0
        """Units of that resource it asks of that node."""
        self.clusters: frozenset[str] = frozenset()
        """Members it waits for, for room or for anything else."""
        self.lacks_room = False
        """Some member refused it for room alone."""
        self.reasons: tuple[ClusterReason, ...] = ()
        self.quota_reason = ""


class _Queue:
    """One queue's jobs in order, and where the next one to try is."""

    __slots__ = ("order", "ready")

    def __init__(self) -> None:
        self.order: list[SortKey] = []
        """All its jobs."""
        self.ready: list[tuple[SortKey, ClassKey]] = []
        """First job of each class that is not parked."""


class Pending:
    """All waiting jobs. Mutable, owned by one loop; ids are binding ids."""

    def __init__(self) -> None:
        self._jobs: dict[str, Waiting] = {}
        self._classes: dict[ClassKey, _Class] = {}
        self._queues: dict[NodePath, _Queue] = {}
        """Queues with jobs."""
        self._settings: dict[NodePath, QueueSettings] = {}
        """Where they are not the defaults."""
        self._lots: dict[tuple[NodePath, str, str], list[tuple[int, ClassKey]]] = {}
        """(node, resource, bound) -> (units asked, class), sorted by units."""
        self._rooms: dict[str, RoomIndex] = {}
        self._others: dict[str, set[ClassKey]] = {}
        """cluster -> classes it refused for anything but room."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, binding_id: object) -> bool:
        return binding_id in self._jobs

    def get(self, binding_id: str) -> Waiting | None:
        return self._jobs.get(binding_id)

    def put(self, waiting: Waiting) -> None:
        """Add, or replace after an edit (K18: priority edits re-order). An unchanged job keeps its state."""
        known = self._jobs.get(waiting.binding_id)
        if known == waiting:
            return
        if known is not None:
            self.discard(waiting.binding_id)
        self._jobs[waiting.binding_id] = waiting
        insort(self._queue(waiting.queue).order, waiting.sort_key)
        key = waiting.class_key
        group = self._classes.get(key)
        if group is None:
            group = self._classes[key] = _Class(key, waiting.queue)
        with _Reheaded(self._queue(group.queue), group):
            insort(group.jobs, waiting.sort_key)

    def discard(self, binding_id: str) -> None:
        """Admitted, deleted or held; unknown ids are fine (K19)."""
        waiting = self._jobs.pop(binding_id, None)
        if waiting is None:
            return
        queue = self._queues[waiting.queue]
        _remove(queue.order, waiting.sort_key)
        group = self._classes[waiting.class_key]
        with _Reheaded(self._queue(group.queue), group):
            _remove(group.jobs, waiting.sort_key)
        if not group.jobs:
            self._unpark(group)
            del self._classes[group.key]
        if not queue.order:
            del self._queues[waiting.queue]

    def configure(self, queue: NodePath, settings: QueueSettings) -> None:
        """In force at once, for jobs that wait already too (K17)."""
        self._settings[queue] = settings
        if settings == DEFAULTS:
            del self._settings[queue]

    def next(self, ledger: Ledger) -> Waiting | None:
        """The job to try now: queues by how far below their min, then their priority, then by their first job's
        priority and age. It passes quota at this moment. Classes met on the way that quota blocks are parked. The
        caller then either admits it (charge, `discard`) or calls `no_room`; it is returned again otherwise."""
        heads: list[tuple[float, int, SortKey, NodePath]] = []
        for path, queue in self._queues.items():
            self._push_head(heads, path, queue, ledger)
        while heads:
            _, _, head, path = heapq.heappop(heads)
            waiting = self._jobs[head[-1]]
            blocked = ledger.blocked(waiting.ask, waiting.binding_id) if waiting.ask else None
            if blocked is None:
                return waiting
            self._park_for_quota(self._classes[waiting.class_key], blocked)
            self._push_head(heads, path, self._queues[path], ledger)
        return None

    def no_room(self, binding_id: str, short: Mapping[str, str], reasons: Iterable[ClusterReason] = ()) -> None:
        """No member takes it: park its class. `short`: Choice.short, cluster -> resource that was lacking there;
        clusters named in `reasons` alone refused it for another reason and wake it by `member_changed`."""
        waiting = self._jobs.get(binding_id)
        if waiting is None:
            return
        group = self._classes[waiting.class_key]
        self._unpark(group)
        group.reasons = tuple(reasons)
        group.quota_reason = ""
        group.lacks_room = bool(short)
        self._set_parked(group, parked=True)
        for cluster, resource in short.items():
            self._room(cluster).park(group.key, hardest(waiting.components, resource))
        others = {reason.cluster for reason in group.reasons} - short.keys()
        for cluster in others:
            self._others.setdefault(cluster, set()).add(group.key)
        group.clusters = frozenset(short) | others

    def quota_freed(self, ledger: Ledger, path: NodePath) -> int:
        """Use was released at `path`: wakes the classes that wait for a node on it and that now fit. Returns how many
        classes woke."""
        woken = 0
        nodes = set(ancestors(path))
        # What a child does not lend makes the part that reaches its parent vary, and the sorting by it stale; what is
        # held for some is no room for others.
        in_order = not ledger.holds() and not any(node.lend_limit for node in ledger.tree.nodes.values())
        for lot in [lot for lot in self._lots if lot[0] in nodes]:
            for _, key in list(self._lots.get(lot, ())):
                group = self._classes[key]
                first = self._jobs[group.jobs[0][-1]]
                blocked = ledger.blocked(first.ask, first.binding_id) if first.ask else None
                if blocked is None:
                    self._wake(group)
                    woken += 1
                elif (blocked.path, blocked.resource, blocked.bound) != lot:
                    self._park_for_quota(group, blocked)
                elif in_order:
                    break  # so are all behind it, who ask for more
        return woken

    def room_reported(self, cluster: str, shapes: Sequence[NodeShape]) -> int:
        """A capacity report: wakes the classes that it can help and the report before could not."""
        return self._wake_keys(self._room(cluster).report(shapes))

    def room_returned(self, cluster: str) -> int:
        """Room that was promised to another job there is free again."""
        return self._wake_keys(self._room(cluster).returned())

    def member_changed(self, cluster: str) -> int:
        """It joined, came back, or its labels, taints, dialect or cordon changed: wakes all that it refused, and all
        that were tried while it was unknown."""
        refused = set(self._room(cluster).everything()) | self._others.get(cluster, set())
        new = {group.key for group in self._classes.values() if group.parked and not group.lot} - refused
        unseen = [key for key in new if cluster not in self._classes[key].clusters]
        return self._wake_keys([*refused, *unseen])

    def member_gone(self, cluster: str) -> None:
        for key in [*self._room(cluster).everything(), *self._others.get(cluster, ())]:
            group = self._classes.get(key)
            if group is not None:
                group.clusters -= {cluster}
        self._rooms.pop(cluster, None)
        self._others.pop(cluster, None)

    def wake(self, binding_id: str) -> None:
        """Try its class again: a back-off ended."""
        waiting = self._jobs.get(binding_id)
        if waiting is not None:
            self._wake(self._classes[waiting.class_key])

    def wake_all(self) -> int:
        """Tree, policy or membership changed."""
        return self._wake_keys([group.key for group in self._classes.values() if group.parked])

    def reason(self, binding_id: str) -> tuple[tuple[ClusterReason, ...], str]:
        """(per cluster, quota sentence) why it waits; ((), "") if it has not been tried yet."""
        waiting = self._jobs.get(binding_id)
        if waiting is None:
            return (), ""
        group = self._classes[waiting.class_key]
        return group.reasons, group.quota_reason or self._behind(waiting, group)

    def positions(self, queue: NodePath, limit: int | None = None) -> list[Waiting]:
        """The queue's jobs in order, for Queue.status.queueItemDetails and `amc get -o wide`."""
        known = self._queues.get(queue)
        return [self._jobs[key[-1]] for key in known.order[:limit]] if known else []

    def asks(self) -> Iterator[Ask]:
        """Of all that wait for quota."""
        return (waiting.ask for waiting in self._jobs.values() if waiting.ask is not None)

    def alike(self, binding_id: str) -> list[str]:
        """Ids of its class in order, itself included; empty if it does not wait."""
        waiting = self._jobs.get(binding_id)
        return [key[-1] for key in self._classes[waiting.class_key].jobs] if waiting else []

    def without_room(self) -> list[Waiting]:
        """First jobs of the classes that quota admits and some member lacks room for: higher priority first, then
        those that have waited longest."""
        return [
            self._jobs[key[-1]] for key in sorted(group.jobs[0] for group in self._classes.values() if group.lacks_room)
        ]

    def short_of_quota(self) -> Iterator[list[Waiting]]:
        """Jobs that wait for a max above their leaf, where other leaves may have borrowed: per class in order, classes
        by their first job. Of a queue that its first job blocks, that one alone."""
        groups = [
            group
            for group in self._classes.values()
            if group.lot is not None and group.lot[2] == "max" and group.jobs and len(group.lot[0]) < self._depth(group)
        ]
        for group in sorted(groups, key=lambda group: group.jobs[0]):
            queue = self._queues[group.queue]
            if not self._blocks(group.queue, queue):
                yield [self._jobs[key[-1]] for key in group.jobs]
            elif queue.order[0] == group.jobs[0]:
                yield [self._jobs[group.jobs[0][-1]]]

    # Parts

    def _depth(self, group: _Class) -> int:
        ask = self._jobs[group.jobs[0][-1]].ask
        return len(ask.path) if ask else 0

    def _queue(self, path: NodePath) -> _Queue:
        return self._queues.setdefault(path, _Queue())

    def _room(self, cluster: str) -> RoomIndex:
        return self._rooms.setdefault(cluster, RoomIndex())

    def _push_head(
        self, heads: list[tuple[float, int, SortKey, NodePath]], path: NodePath, queue: _Queue, ledger: Ledger
    ) -> None:
        head = self._head(path, queue)
        if head is not None:
            priority = self._settings.get(path, DEFAULTS).priority
            quota = self._jobs[head[-1]].quota
            heapq.heappush(heads, (min(1.0, ledger.share(quota)), -priority, head, path))

    def _head(self, path: NodePath, queue: _Queue) -> SortKey | None:
        """The queue's next job to try; None if there is none or its first job blocks it."""
        if not queue.ready:
            return None
        if self._blocks(path, queue):
            first = self._jobs[queue.order[0][-1]]
            return None if self._classes[first.class_key].parked else queue.order[0]
        return queue.ready[0][0]

    def _blocks(self, path: NodePath, queue: _Queue) -> bool:
        settings = self._settings.get(path, DEFAULTS)
        return settings.policy == "Block" or (
            settings.policy == "Intelligent" and -queue.order[0][0] >= settings.threshold
        )

    def _behind(self, waiting: Waiting, group: _Class) -> str:
        """What holds back a job that was never tried itself."""
        queue = self._queues[waiting.queue]
        if group.parked or not self._blocks(waiting.queue, queue) or queue.order[0] == waiting.sort_key:
            return ""
        first = self._jobs[queue.order[0][-1]]
        queue_title = waiting.hand_made or "/".join(waiting.queue)
        return f"queue {queue_title}: behind {first.namespace}/{first.name}, which blocks the queue"

    def _park_for_quota(self, group: _Class, blocked: Blocked) -> None:
        self._unpark(group)
        group.quota_reason = blocked.message
        group.reasons = ()
        self._set_parked(group, parked=True)
        group.lot = (blocked.path, blocked.resource, blocked.bound)
        group.asked = blocked.asked
        insort(self._lots.setdefault(group.lot, []), (group.asked, group.key))

    def _wake(self, group: _Class) -> None:
        self._unpark(group)
        self._set_parked(group, parked=False)

    def _wake_keys(self, keys: Iterable[object]) -> int:
        groups = [self._classes[key] for key in keys]  # type: ignore[index]  # only class keys are parked
        for group in groups:
            self._wake(group)
        return len(groups)

    def _set_parked(self, group: _Class, *, parked: bool) -> None:
        with _Reheaded(self._queue(group.queue), group):
            group.parked = parked

    def _unpark(self, group: _Class) -> None:
        """Take it out of every place it waits in; it stays marked as parked."""
        if group.lot is not None:
            lot = self._lots[group.lot]
            _remove(lot, (group.asked, group.key))
            if not lot:
                del self._lots[group.lot]
            group.lot = None
        for cluster in group.clusters:
            self._room(cluster).discard(group.key)
            self._others.get(cluster, set()).discard(group.key)
        group.clusters = frozenset()
        group.lacks_room = False


class _Reheaded:
    """Keeps the queue's `ready` list right while a class's first job or its parking changes."""

    def __init__(self, queue: _Queue, group: _Class) -> None:
        self._ready = queue.ready
        self._group = group

    def __enter__(self) -> None:
        if self._group.jobs and not self._group.parked:
            _remove(self._ready, (self._group.jobs[0], self._group.key))

    def __exit__(self, *_: object) -> None:
        if self._group.jobs and not self._group.parked:
            insort(self._ready, (self._group.jobs[0], self._group.key))


def _remove(ordered: list[Any], item: Any) -> None:
    """Out of a sorted list that has it."""
    index = bisect_left(ordered, item)
    assert ordered[index] == item
    del ordered[index]
