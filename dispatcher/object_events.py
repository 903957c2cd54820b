"""Tells users on their own objects what is wrong with them: policies, the quota tree, jobs."""

import asyncio
import logging

import msgspec

from dispatcher.hub_watches import HubWatches, Undecoded, parsed
from dispatcher.jobs import Job
from dispatcher.policies import idle_text
from dispatcher.policy_conditions import policy_conditions
from dispatcher.readings import Readings
from kube.api.api import POLICIES, PYTORCH_JOBS, QUOTA_TREES, Api, Resource
from kube.api.clock import Clock
from kube.api.errors import ApiError, Conflict, NotFound
from kube.api.events import EventRecorder, ObjectReference
from kube.objects.meta import Condition

log = logging.getLogger(__name__)

DELAY_SECONDS = 2.0
"""A policy and its jobs are often applied together: what a policy selects is judged a little later."""
MOST_JOBS = 200
"""A policy in a namespace of more jobs is not told that it selects nothing: looking would cost too much."""


class ObjectEvents:
    """`run()` belongs in a TaskGroup. `touch(namespace)` after changes there; "" for all and for the tree."""

    def __init__(self, hub: Api, watches: HubWatches, readings: Readings, events: EventRecorder, clock: Clock) -> None:
        self._hub = hub
        self._watches = watches
        self._readings = readings
        self._events = events
        self._clock = clock
        self._dirty: set[str] = {""}
        self._nudge = asyncio.Event()
        self._nudge.set()
        self._told: dict[tuple[str, str, str], str] = {}
        """(uid, reason, generation) -> message: said once."""

    def touch(self, namespace: str) -> None:
        self._dirty.add(namespace)
        self._nudge.set()

    async def run(self) -> None:
        while True:
            await self._nudge.wait()
            await self._clock.sleep(DELAY_SECONDS)
            self._nudge.clear()
            dirty, self._dirty = self._dirty, set()
            await self._policies(dirty)
            if "" in dirty:
                self._trees()

    def warn_job(self, key: tuple[str, str], reason: str, message: str) -> None:
        job = self._watches.jobs.get(*key)
        if job is not None:
            self._events.record(_reference(PYTORCH_JOBS, job), "Warning", reason, message)

    async def _policies(self, namespaces: set[str]) -> None:
        for (namespace, name), state in self._readings.policy_states().items():
            policy = self._watches.policies.get(namespace, name)
            if policy is None or ("" not in namespaces and namespace not in namespaces):
                continue
            if self._going(namespace, policy):
                continue
            problems = [p.message for p in state.problems]
            if problems:
                self._tell(POLICIES, policy, "InvalidPolicy", f"not in force: {'; '.join(problems)}")
            for warning in state.warnings:
                self._tell(POLICIES, policy, "PolicyWarning", warning)
            idle = None
            if state.policy is not None and (jobs := self._jobs(namespace)) is not None:
                idle = idle_text(state.policy, jobs)
                if idle:
                    self._tell(POLICIES, policy, "SelectsNothing", idle)
            await self._show(policy, problems, idle)

    def _going(self, namespace: str, policy: Undecoded) -> bool:
        """Deleted, or in a namespace that is: nobody is left to read it, and events are refused there."""
        there = self._watches.namespaces.get("", namespace)
        return bool(policy.metadata.deletion_timestamp or there is None or there.metadata.deletion_timestamp)

    async def _show(self, policy: Undecoded, problems: list[str], idle: str | None) -> None:
        """Conditions on the policy itself, written when they change. A lost write comes with the next touch."""
        before = msgspec.convert(((parsed(policy.status) or {}).get("conditions") or []), list[Condition])
        wall = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        wanted = policy_conditions(problems, idle, before, policy.metadata.generation, wall)
        if wanted == before:
            return
        body = msgspec.json.encode({"status": {"conditions": wanted}})
        where = policy.metadata
        try:
            await self._hub.patch(POLICIES, where.name, body, where.namespace, subresource="status")
        except (Conflict, NotFound):
            return  # the watch brings the newer one, or none
        except ApiError as error:
            log.info("status of policy %s/%s not written: %s", where.namespace, where.name, error)

    def _jobs(self, namespace: str) -> list[Job] | None:
        keys = [job.metadata.key for job in self._watches.jobs if job.metadata.namespace == namespace]
        if len(keys) > MOST_JOBS:
            return None
        readings = [self._readings.get(key) for key in keys]
        return [reading.job for reading in readings if reading is not None and reading.job is not None]

    def _trees(self) -> None:
        state = self._readings.tree_state
        if state.source is not None and (tree := self._watches.trees.get(*state.source)) is not None:
            if state.problems:
                text = "; ".join(p.message for p in state.problems)
                self._tell(QUOTA_TREES, tree, "InvalidQuotaTree", f"the last good tree stays in force: {text}")
            for warning in state.warnings:
                self._tell(QUOTA_TREES, tree, "QuotaTreeWarning", warning)
        for key, why in state.rejected.items():
            if (other := self._watches.trees.get(*key)) is not None:
                self._tell(QUOTA_TREES, other, "QuotaTreeIgnored", why)

    def _tell(self, resource: Resource, document: Undecoded, reason: str, message: str) -> None:
        key = (document.metadata.uid, reason, str(document.metadata.generation))
        if self._told.get(key) == message:
            return
        self._told[key] = message
        self._events.record(_reference(resource, document), "Warning", reason, message)


def _reference(resource: Resource, document: Undecoded) -> ObjectReference:
    return ObjectReference(
        api_version=resource.api_version,
        kind=resource.kind,
        name=document.metadata.name,
        namespace=document.metadata.namespace,
        uid=document.metadata.uid,
    )
