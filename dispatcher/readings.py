"""The present reading of each hub job, made when asked for and kept until something it depends on changes."""

from collections.abc import Callable

import msgspec

from dispatcher.hub_watches import HubWatches, MetadataOnly, Undecoded, parsed
from dispatcher.intents import Reading, Surroundings, read
from dispatcher.jobs import Problem
from dispatcher.policies import Policy, read_policy
from dispatcher.queue_names import queue_name
from dispatcher.queue_units import Checks, judge_checks, needed_checks, queue_unit_name
from dispatcher.queues import is_ours, last_good_tree
from dispatcher.quota_tree import NO_TREE, Tree, choose_tree, read_tree
from kube.api.api import POLICIES, PYTORCH_JOBS, QUEUES, QUOTA_TREES
from kube.api.reflector import Change
from kube.objects.binding import binding_name
from kube.objects.classes import PriorityClass
from kube.objects.meta import Json
from kube.objects.names import QUEUE_NAMESPACE

Key = tuple[str, str]

MOST_READINGS = 10_000
"""Parsed jobs that are kept, of 14 kB each; reading one again takes 0.1 ms."""


class PolicyState(msgspec.Struct, frozen=True):
    policy: Policy | None
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]


class TreeState(msgspec.Struct, frozen=True):
    """`tree` is in force; `problems` and `rejected` say what is wrong with objects that are not."""

    tree: Tree = NO_TREE
    source: Key | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    rejected: dict[Key, str] = {}


class Readings:
    """Construct before the watches run. on_jobs(namespace; "" for all): readings there may have changed.
    on_tree(): another quota tree is in force, or its problems changed."""

    def __init__(self, watches: HubWatches, *, on_jobs: Callable[[str], None], on_tree: Callable[[], None]) -> None:
        self._watches = watches
        self._on_jobs = on_jobs
        self._on_tree = on_tree
        self._policies: dict[str, dict[str, PolicyState]] = {}
        self._queues: dict[str, Json] = {}
        """Hand-made ones."""
        self._classes: dict[str, int] = {}
        self._default_priority = 0
        self._epoch = 0
        """Raised by changes that concern every job."""
        self._namespace_epoch: dict[str, int] = {}
        self._known: dict[Key, tuple[tuple[str, str, int, int, str], Reading]] = {}
        self.tree_state = TreeState()
        watches.policies.subscribe(self._policy_changed)
        watches.trees.subscribe(self._tree_changed)
        watches.namespaces.subscribe(self._namespace_changed)
        watches.priority_classes.subscribe(self._class_changed)
        watches.queues.subscribe(self._queue_changed)
        watches.jobs.subscribe(self._job_changed)

    @property
    def tree(self) -> Tree:
        return self.tree_state.tree

    @property
    def priority_classes(self) -> dict[str, int]:
        return self._classes

    def policy_states(self) -> dict[Key, PolicyState]:
        return {(ns, name): state for ns, states in self._policies.items() for name, state in states.items()}

    def get(self, key: Key, current_policy: str = "") -> Reading | None:
        """None: the watch shows no such job."""
        job = self._watches.jobs.get(*key)
        if job is None:
            return None
        namespace = key[0]
        valid_for = (
            job.metadata.uid, job.metadata.resource_version, self._epoch, self._namespace_epoch.get(namespace, 0),
            current_policy,
        )  # fmt: skip
        known = self._known.get(key)
        if known is not None and known[0] == valid_for:
            return known[1]
        found = read(job.metadata, job.document(PYTORCH_JOBS), self._around(namespace), current_policy)
        self._known[key] = (valid_for, found)
        if len(self._known) > MOST_READINGS:
            del self._known[next(iter(self._known))]
        return found

    def needed_checks(self, reading: Reading | None) -> list[str]:
        """Admission checks that the job's queue asks for."""
        if reading is None or reading.job is None or reading.ask is None:
            return []
        queue = self._watches.queues.get(QUEUE_NAMESPACE, reading.queue or queue_name(reading.ask.path))
        return needed_checks(queue.document(QUEUES) if queue else None, reading.job.labels)

    def checks(self, key: Key, reading: Reading | None) -> Checks:
        """What others still have to say before the job may be dispatched."""
        if reading is None or reading.ask is None:
            return Checks()
        unit = self._watches.queue_units.get(key[0], queue_unit_name(binding_name(key[1])))
        return judge_checks(self.needed_checks(reading), parsed(unit.status) if unit else None)

    def forget(self, key: Key) -> None:
        """Drops the parsed job (large); it is read again when asked for."""
        self._known.pop(key, None)

    def _around(self, namespace: str) -> Surroundings:
        there = self._watches.namespaces.get("", namespace)
        return Surroundings(
            policies=[s.policy for s in self._policies.get(namespace, {}).values() if s.policy is not None],
            tree=self.tree,
            queues=self._queues,
            namespace_annotations=(there.metadata.annotations or {}) if there else {},
            priority_classes=self._classes,
            default_priority=self._default_priority,
        )

    def _changed(self, namespace: str) -> None:
        if namespace:
            self._namespace_epoch[namespace] = self._namespace_epoch.get(namespace, 0) + 1
        else:
            self._epoch += 1
        self._on_jobs(namespace)

    def _job_changed(self, _: Change, old: Undecoded | None, new: Undecoded | None) -> None:
        if new is None and old is not None:
            self._known.pop(old.metadata.key, None)

    def _policy_changed(self, _: Change, old: Undecoded | None, new: Undecoded | None) -> None:
        if new is None:
            if old is not None:
                self._policies.get(old.metadata.namespace, {}).pop(old.metadata.name, None)
                self._changed(old.metadata.namespace)
            return
        if old is not None and old.metadata.uid == new.metadata.uid and bytes(old.spec) == bytes(new.spec):
            return
        reading = read_policy(new.document(POLICIES))
        state = PolicyState(reading.policy, reading.problems, reading.warnings)
        self._policies.setdefault(new.metadata.namespace, {})[new.metadata.name] = state
        self._changed(new.metadata.namespace)

    def _namespace_changed(self, _: Change, old: MetadataOnly | None, new: MetadataOnly | None) -> None:
        if old is None or new is None or old.metadata.annotations != new.metadata.annotations:
            self._changed((new or old).metadata.name if new or old else "")  # type: ignore[union-attr]

    def _queue_changed(self, _: Change, old: Undecoded | None, new: Undecoded | None) -> None:
        found = (new or old).document(QUEUES) if new or old else {}  # type: ignore[union-attr]
        name = found["metadata"]["name"]
        before = self._queues.pop(name, None)
        if new is not None and not is_ours(found):
            self._queues[name] = {"metadata": {"annotations": found["metadata"].get("annotations") or {}}}
        if before != self._queues.get(name):
            self._changed("")

    def _class_changed(self, _: Change, old: PriorityClass | None, new: PriorityClass | None) -> None:
        if old is not None:
            self._classes.pop(old.metadata.name, None)
        if new is not None:
            self._classes[new.metadata.name] = new.value
        if old is None or new is None or (old.value, old.global_default) != (new.value, new.global_default):
            self._default_priority = max(
                (c.value for c in self._watches.priority_classes if c.global_default), default=0
            )
            self._changed("")

    def recover_tree(self) -> None:
        """At the start, when all is read: a tree that is bad now was good before, and that one stays in force."""
        state = self.tree_state
        if state.source is None or not state.problems or state.tree != NO_TREE:
            return
        found = last_good_tree(queue.document(QUEUES) for queue in self._watches.queues)
        if found is not None:
            self.tree_state = msgspec.structs.replace(state, tree=found)
            self._changed("")
            self._on_tree()

    def _tree_changed(self, _: Change, old: Undecoded | None, new: Undecoded | None) -> None:
        if old is not None and new is not None and bytes(old.spec) == bytes(new.spec):
            return
        chosen, rejected = choose_tree([t.document(QUOTA_TREES) for t in self._watches.trees])
        if chosen is None:
            # Deleted: nothing new is admitted from the tree, what is charged stays charged.
            state = TreeState(rejected=rejected)
        else:
            reading = read_tree(chosen)
            metadata = chosen["metadata"]
            state = TreeState(
                tree=reading.tree if reading.tree is not None else self.tree,
                source=(metadata["namespace"], metadata["name"]),
                problems=reading.problems,
                warnings=reading.warnings,
                rejected=rejected,
            )
        changed = state.tree != self.tree
        self.tree_state = state
        if changed:
            self._changed("")
        self._on_tree()
