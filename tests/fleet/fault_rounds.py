"""A round: 40 gangs and some plain pods come to one member while its extender and its scheduler are mistreated."""

import contextlib
import functools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from hack.fleet.fleet import Cluster, Fleet
from tests.fleet.replay import bindings, cpus_of, longest_gap, overcommits
from tests.fleet.stories import (
    Json,
    assert_bound_once,
    gang_pod,
    plain_pod,
    pod_group,
    pods,
    posting,
)

GANGS, PLAIN = 40, 20
SMALLEST, LARGEST = 2, 8
ARRIVAL_SECONDS = 6.0
LOOK_SECONDS = 0.25
SETTLE_SECONDS = 240.0
"""Above the hold of a bind call (75 s) plus that of a Binding without answer (60 s), on two busy cores."""
MEMBER = "member1"
ONE_PAIR = {"member1/kube-scheduler": "member1/extender"}
TWO_PAIRS = ONE_PAIR | {"member1/kube-scheduler-2": "member1/extender-2"}
"""Scheduler -> the extender beside it."""


@dataclass(frozen=True, slots=True)
class Fault:
    at: float
    """Seconds after the first gang."""
    what: str
    """kill, stop, cut or hang."""
    process: str
    link: str = ""
    lasts: float = 0.0
    """Seconds until it is started, continued or healed."""
    aimed: bool = False
    """It waits for the next Binding after its time: the rest of that gang is on its way then."""

    def __str__(self) -> str:
        where = f" from {self.link}" if self.link else ""
        aimed = ", at a Binding" if self.aimed else ""
        return f"{self.at:.1f}s: {self.what} {self.process}{where} for {self.lasts:.1f}s{aimed}"


def faults(order: Random, pairs: Mapping[str, str], *, long: bool) -> list[Fault]:
    """One or two for each of the processes, so that they overlap now and then."""
    # Beyond filter's timeout, the scheduler's Lease, the extender's, and bind's timeout.
    lengths = (3.0, 12.0, 20.0, 80.0) if long else (3.0, 12.0)
    weights = (4, 3, 3, 1) if long else (2, 1)
    found = []
    for process in _processes(pairs):
        for _ in range(order.choice((1, 2))):
            what = order.choice(("kill", "stop", "cut", "hang"))
            link = "" if what in ("kill", "stop") else MEMBER
            if link and process in pairs and order.random() < 0.5:
                link = pairs[process]
            lasts = order.uniform(0, 2) if what == "kill" else order.choices(lengths, weights)[0]
            at = order.uniform(0, ARRIVAL_SECONDS)
            found.append(Fault(at, what, process, link, lasts, aimed=order.random() < 0.5))
    return sorted(found, key=lambda fault: fault.at)


def _processes(pairs: Mapping[str, str]) -> list[str]:
    return [process for scheduler, extender in pairs.items() for process in (extender, scheduler)]


@dataclass
class Round:
    """One namespace, one seed."""

    fleet: Fleet
    member: Cluster
    namespace: str
    order: Random
    pairs: Mapping[str, str]
    long: bool = False
    gangs: dict[str, int] = field(default_factory=dict)
    """Name -> size; plain pods count as gangs of one."""
    posted: list[Json] = field(default_factory=list)
    landed: dict[str, float] = field(default_factory=dict)
    """When each was first seen whole, monotonic."""
    removed: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Raises AssertionError when something does not land, or when a thread of it has failed."""
        self.since = self.member.audit_mark()
        self._began = time.monotonic()
        plan = faults(self.order, self.pairs, long=self.long)
        print("".join(f"\n  {fault}" for fault in plan), flush=True)
        works: list[Callable[[], None]] = [self._arrive]
        for process in _processes(self.pairs):
            works.append(functools.partial(self._mistreat, [f for f in plan if f.process == process]))
        with contextlib.closing(self.member.rest()) as self._rest:
            self._play(works)

    def _play(self, works: list[Callable[[], None]]) -> None:
        problems: list[BaseException] = []
        threads = [threading.Thread(target=_kept(work, problems), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self._look()
            time.sleep(LOOK_SECONDS)
        assert not problems, problems
        settled_from = time.monotonic()
        while len(self.landed) < len(self.gangs):
            self._look()
            if time.monotonic() > settled_from + SETTLE_SECONDS:
                raise AssertionError(self._what_waits())
            time.sleep(LOOK_SECONDS)
        print(f"\n  all landed {time.monotonic() - settled_from:.1f} s after the last fault was over")

    def judge(self, sizes: dict[str, int]) -> None:
        """No partial gang, each pod bound once, nobody evicted, and no node overcommitted at any moment."""
        bound = Counter(_gang(p) for p in pods(self.member, self.namespace) if p["spec"].get("nodeName"))
        partial = {
            gang: f"{bound[gang]} of {size}"
            for gang, size in self.gangs.items()
            if gang not in self.removed and bound[gang] != size
        }
        assert partial == {}
        every = [e for e in self.member.audit_events(self.since) if e.namespace == self.namespace]
        events = bindings(every)
        assert_bound_once(events)
        assert {e.name for e in events} == {p["metadata"]["name"] for p in self.posted}
        assert overcommits(every, cpus_of(self.posted), sizes) == []
        assert [e for e in every if e.subresource == "eviction"] == []
        print(f"\n  {len(events)} Bindings; the longest from a gang's first to its last: {longest_gap(events):.2f} s")

    # --- the load ---

    def _arrive(self) -> None:
        """Gangs come three at a time, their pods mixed."""
        names = [f"g{number}" for number in range(GANGS)]
        plain = [f"p{number}" for number in range(PLAIN)]
        with posting(self.member) as post:
            for first in range(0, GANGS, 3):
                together = names[first : first + 3]
                members = []
                for gang in together:
                    size = self.order.randint(SMALLEST, LARGEST)
                    cpu, profile = str(self.order.randint(1, 3)), self.order.choice(("default-scheduler", "muster"))
                    post(pod_group(self.namespace, gang, size))
                    self.gangs[gang] = size
                    members += [
                        gang_pod(self.namespace, gang, index, cpu=cpu, schedulerName=profile) for index in range(size)
                    ]
                for _ in range(min(2, len(plain))):
                    name = plain.pop()
                    self.gangs[name] = 1
                    members.append(plain_pod(self.namespace, f"{name}-0", cpu="1"))
                self.order.shuffle(members)
                for each in members:
                    self.posted.append(post(each))
                time.sleep(max(0.0, self._began + ARRIVAL_SECONDS * first / GANGS - time.monotonic()))

    def _look(self) -> None:
        """Notes what is whole, and takes away what has been so for a while, to make room for what waits."""
        now = time.monotonic()
        there = self._rest.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        bound = Counter(_gang(p) for p in there if p["spec"].get("nodeName"))
        for gang, size in list(self.gangs.items()):
            if gang not in self.removed and bound[gang] == size:
                self.landed.setdefault(gang, now)
        if len(self.landed) == len(self.gangs):
            return
        for gang, when in self.landed.items():
            if gang not in self.removed and now > when + 1.0:
                self._remove(gang)

    def _remove(self, gang: str) -> None:
        self.removed.add(gang)
        self._rest.delete(f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{self.namespace}/podgroups/{gang}")
        for index in range(self.gangs[gang]):
            self._rest.delete(f"/api/v1/namespaces/{self.namespace}/pods/{gang}-{index}", grace_seconds=0)

    def _what_waits(self) -> str:
        waiting = [p for p in pods(self.member, self.namespace) if not p["spec"].get("nodeName")]
        missing = sorted(set(self.gangs) - set(self.landed))
        told = [(p["metadata"]["name"], p["status"].get("conditions")) for p in waiting]
        return f"not landed: {', '.join(missing)}\n{json.dumps(told, indent=1)[:6000]}"

    # --- the faults ---

    def _mistreat(self, plan: list[Fault]) -> None:
        for fault in plan:
            time.sleep(max(0.0, self._began + fault.at - time.monotonic()))
            if fault.aimed:
                self._next_binding()
            process = self.fleet.processes[fault.process]
            if fault.what == "kill":
                process.kill()
                time.sleep(fault.lasts)
                process.restart(wait=False)
            elif fault.what == "stop":
                process.stop()
                time.sleep(fault.lasts)
                process.cont()
            else:
                (self.fleet.cut if fault.what == "cut" else self.fleet.hang)(fault.process, fault.link)
                time.sleep(fault.lasts)
                self.fleet.heal(fault.process, fault.link)

    def _next_binding(self) -> None:
        """Until the API server has taken one more Binding; 3 s at most, for there may be none."""
        mark, deadline = self.member.audit_mark(), time.monotonic() + 3.0
        while time.monotonic() < deadline:
            if (size := self.member.audit_mark()) > mark:
                if any(e.target == "pods/binding" for e in self.member.audit_events(mark)):
                    return
                mark = size
            time.sleep(0.001)


def _gang(pod: Json) -> str:
    name: str = pod["metadata"]["name"]
    return name.rpartition("-")[0]


def _kept(work: Callable[[], None], problems: list[BaseException]) -> Callable[[], None]:
    """For a thread: what it raises is kept."""

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by whoever joins the thread
            problems.append(error)

    return run
