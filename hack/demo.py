"""`make demo`: a fleet of real control planes, and the walk-through in gang mode and in queue mode.

Every line that starts with `$` is run as printed; the fleet is left running.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from hack.fleet import layout
from hack.fleet.build import BuildError, ensure_built
from hack.fleet.fleet import Cluster, Fleet, wait_for
from hack.fleet.spec import FleetSpec, default_members
from hack.fleet.state import FleetError
from hack.fleet.toolchain import ToolchainError
from hack.fleet.up import kubectl_path

REPOSITORY = Path(__file__).resolve().parent.parent
PROGRAMS = Path(sys.executable).parent
"""Where kubectl-amc was installed: the environment this runs in."""
JOB = "pytorch-test"
LANDING_DEADLINE = 60.0
"""Seconds; a landing takes about one."""


class Terminal:
    """Runs commands on the hub as the user would, printing each with its output."""

    def __init__(self, hub: Cluster) -> None:
        kubectl = kubectl_path()
        path = [str(PROGRAMS), *([] if str(kubectl.parent) in os.environ["PATH"] else [str(kubectl.parent)])]
        self._environment = os.environ | {
            "KUBECONFIG": str(hub.kubeconfig),
            "PATH": os.pathsep.join([*path, os.environ["PATH"]]),
        }

    def run(self, command: str, show: str = "") -> str:
        """Prints and runs; `show` limits what is printed to what follows a line that starts with it."""
        print(f"\n$ {command}", flush=True)
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=REPOSITORY,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        shown = done.stdout
        if show and show in shown:
            shown = "...\n" + shown[shown.index(show) :]
        print(shown.rstrip(), flush=True)
        if done.returncode != 0:
            raise FleetError(f"`{command}` failed: {done.stderr.strip()}")
        return done.stdout

    def quiet(self, command: str) -> str:
        """Runs without printing; "" when it fails."""
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=REPOSITORY,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout if done.returncode == 0 else ""


def main() -> int:
    began = time.monotonic()
    try:
        ensure_built(_say)
        built = time.monotonic()
        fleet = _up()
        terminal = Terminal(fleet.hub)
        _clean(terminal)
        _gang_mode(fleet, terminal)
        _queue_mode(fleet, terminal)
    except (AssertionError, BuildError, FleetError, ToolchainError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        print("Look at: .venv/bin/python -m hack.fleet status    Stop with: make down", file=sys.stderr)
        return 1
    _farewell(fleet, built - began, time.monotonic() - built)
    return 0


def _up() -> Fleet:
    members = tuple(msgspec.structs.replace(m, operator="real") for m in default_members(2))
    fleet = Fleet.up(layout.default_folder("default"), FleetSpec(members=members), _say)
    fleet.restore()
    return fleet


def _clean(terminal: Terminal) -> None:
    """What an earlier demo left, so that this one can be run again and again."""
    terminal.quiet("kubectl delete pytorchjob --all --wait --timeout=60s; kubectl delete propagationpolicy --all")
    terminal.quiet("kubectl delete elasticquotatree -n kube-system --all")


def _gang_mode(fleet: Fleet, terminal: Terminal) -> None:
    _title("Gang mode: Master and Workers land together in one member cluster")
    terminal.quiet("kubectl wait memberclusters --all --for=condition=Ready --timeout=60s")
    terminal.run("kubectl get memberclusters")
    terminal.run("kubectl apply -f examples/propagationpolicy-gang.yaml -f examples/pytorchjob.yaml")
    _wait_until_running(terminal, JOB)
    _tour(fleet, terminal)
    terminal.run(f"kubectl delete pytorchjob {JOB}")


def _queue_mode(fleet: Fleet, terminal: Terminal) -> None:
    _title("Queue mode: the quota tree lets one job of namespace default run at a time")
    terminal.run("kubectl apply -f examples/elasticquotatree.yaml")
    wait_for("a Queue for each node of the quota tree", lambda: "root-child-2-" in _queues(terminal))
    terminal.run("kubectl get queue -n kube-queue")
    terminal.run("kubectl apply -f examples/propagationpolicy-queue.yaml -f examples/pytorchjob.yaml")
    _wait_until_running(terminal, JOB)
    second = f"{JOB}-2"
    terminal.run(f"sed 's/name: {JOB}$/name: {second}/' examples/pytorchjob.yaml | kubectl apply -f -")
    wait_for("the second job queued", lambda: "Enqueued" in terminal.quiet("kubectl get queueunit"))
    _tour(fleet, terminal)
    terminal.run("kubectl get queueunit")
    terminal.run(
        f"kubectl get resourcebinding {second}-pytorchjob"
        """ -o jsonpath='{.status.conditions[?(@.type=="Scheduled")].message}'"""
    )
    print("\nThe second job goes as soon as the first is gone:")
    terminal.run(f"kubectl delete pytorchjob {JOB}")
    _wait_until_running(terminal, second)
    terminal.run("kubectl amc get pod -M")


def _tour(fleet: Fleet, terminal: Terminal) -> None:
    """The five commands of the page's third step."""
    terminal.run("kubectl get pytorchjob")
    terminal.run(f"kubectl describe pytorchjob {JOB}", show="Events:")
    terminal.run("kubectl amc get pytorchjob -M")
    terminal.run("kubectl amc get pod -M")
    cluster = json.loads(terminal.quiet(f"kubectl get resourcebinding {JOB}-pytorchjob -o json"))["spec"]["attempt"][
        "cluster"
    ]
    if cluster not in fleet.members:
        raise FleetError(f"the job went to {cluster!r}, which is no member of this fleet")
    terminal.run(f"kubectl amc get pytorchjob {JOB} -m {cluster} -oyaml | head -n 24")


def _wait_until_running(terminal: Terminal, job: str) -> None:
    def running() -> bool:
        lines = terminal.quiet("kubectl amc get pod -M --no-headers").splitlines()
        return sum(line.startswith(f"{job}-") and " Running " in line for line in lines) == 3

    wait_for(f"three pods of {job} running", running, timeout=LANDING_DEADLINE, interval=0.3)


def _queues(terminal: Terminal) -> str:
    return terminal.quiet("kubectl get queue -n kube-queue")


def _farewell(fleet: Fleet, building: float, walking: float) -> None:
    _title(f"Done in {walking:.0f} s" + (f", after {building:.0f} s of building" if building > 5 else ""))
    print(
        f"""The fleet is still running. Look around:

  export KUBECONFIG={fleet.hub.kubeconfig}
  export PATH={PROGRAMS}:$PATH
  kubectl get memberclusters,resourcebindings -A
  kubectl amc get pod -M -o wide
  {PROGRAMS}/python -m hack.fleet status                  # every process; `--help` lists kill, stop, cut, ...
  KUBECONFIG={fleet.members["member1"].kubeconfig} kubectl get gangreservations,clustercapacities -A

Stop it with: make down"""
    )


def _title(text: str) -> None:
    print(f"\n--- {text} ---", flush=True)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
