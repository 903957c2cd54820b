"""One measured run, and all of them interleaved.

A run: the scheduler is started and stopped (SIGSTOP), the pods are created, the scheduler is released; the clock runs
from there to the first look that finds no pod without a node. The extender is not stopped: it follows the API server
like any watcher, as it would beside a scheduler that is busy with something else; its CPU until the release is
reported too.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hack.bench import measure
from hack.bench.rig import API_SERVER, ETCD, EXTENDER, SCHEDULER, STOCK, Rig
from hack.bench.scenario import NAMESPACE, Contender, Shape, contenders, in_turn, node_documents
from hack.fleet.rest import Rest

LOOK_SECONDS = 0.04
"""Between two looks: the error of a measured time."""
SETTLE_SECONDS = 1.0
"""After the pods exist, for the API server to come to rest; and after the last Binding, for what follows from it
(events, status) to be counted."""
LONGEST_SECONDS = 180.0
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_POD_GROUPS = f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/podgroups"
_AT_ONCE = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}

Say = Callable[[str], None]


class RunError(Exception):
    """A run that did not come to its end, with the ends of the logs."""


@dataclass(frozen=True, slots=True)
class Run:
    """seconds: from release to last Binding. cpu: seconds by component until SETTLE_SECONDS later. writes: requests by
    verb and resource in the same time. cpu_before: the extender's from the first pod's creation to the release."""

    seconds: float
    cpu: dict[str, float]
    writes: dict[str, int]
    cpu_before: float = 0.0


@dataclass(slots=True)
class Result:
    """All runs on one number of nodes, by contender, in the order of the rounds."""

    nodes: int
    runs: dict[Contender, list[Run]] = field(default_factory=dict)


def run_all(rig: Rig, sizes: tuple[int, ...], shapes: tuple[Shape, ...], rounds: int, say: Say) -> list[Result]:
    """Every contender in every round on every number of nodes (ascending). Raises RunError."""
    results = []
    there = 0
    for nodes in sizes:
        entrants = contenders(nodes, shapes)
        rig.create(node_documents(there, nodes))
        there = nodes
        result = Result(nodes, {contender: [] for contender in entrants})
        for number in range(rounds):
            for contender in in_turn(entrants, number):
                run = run_once(rig, contender)
                result.runs[contender].append(run)
                rate = contender.pods / run.seconds
                cpu = ", ".join(f"{name} {seconds:.1f}" for name, seconds in run.cpu.items())
                say(
                    f"{nodes} nodes, round {number + 1}: {contender.name:22} {run.seconds:6.2f} s {rate:6.0f}/s"
                    f"  CPU s: {cpu}"
                )
        results.append(result)
    return results


def run_once(rig: Rig, contender: Contender) -> Run:
    """Leaves nothing behind but events."""
    scheduler = STOCK if contender.shape is None else SCHEDULER
    processes = {"apiserver": API_SERVER, "etcd": ETCD, "scheduler": scheduler}
    if contender.shape is not None:
        processes["extender"] = EXTENDER
        rig.start(EXTENDER)
    rig.start(scheduler)
    with contextlib.closing(rig.rest()) as rest, _cleared(rig, rest, scheduler, EXTENDER):
        rig.stop(scheduler)
        pids = {name: rig.pid(process) for name, process in processes.items()}
        cpu_before = measure.cpu_seconds(pids.get("extender", 0))
        rig.create(contender.pod_groups())
        rig.create(contender.pod_documents())
        time.sleep(SETTLE_SECONDS)
        cpu_before = measure.cpu_seconds(pids.get("extender", 0)) - cpu_before
        writes = _writes(rest)
        cpu = {name: measure.cpu_seconds(pid) for name, pid in pids.items()}
        began = time.monotonic()
        rig.release(scheduler)
        seconds = _until_all_bound(rig, rest, began, list(processes.values()))
        time.sleep(SETTLE_SECONDS)
        return Run(
            seconds,
            {name: round(measure.cpu_seconds(pid) - cpu[name], 2) for name, pid in pids.items()},
            dict(_writes(rest) - writes),
            round(cpu_before, 2),
        )


def _until_all_bound(rig: Rig, rest: Rest, began: float, processes: list[str]) -> float:
    while True:
        looked = time.monotonic()
        if not rest.get(f"{_PODS}?fieldSelector=spec.nodeName=&limit=1")["items"]:
            return looked - began
        if looked - began > LONGEST_SECONDS:
            tails = "\n".join(rig.log_tail(process) for process in processes)
            raise RunError(f"pods without a node after {LONGEST_SECONDS:.0f} s\n{tails}")
        time.sleep(LOOK_SECONDS)


@contextlib.contextmanager
def _cleared(rig: Rig, rest: Rest, *processes: str) -> Iterator[None]:
    """Ends the processes, then deletes the pods: nobody is to watch that."""
    try:
        yield
    finally:
        rig.end(*processes)
        for path in (_PODS, _POD_GROUPS):
            rest.request("DELETE", path, _AT_ONCE)


def _writes(rest: Rest) -> Counter[str]:
    return measure.writes(rest.get("/metrics")["text"])
