"""Starts and ends the components of one fleet and keeps the record of it in state.json.

There is no daemon: what runs is known from the record, what has crashed from the difference.
"""

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hack.fleet import layout, process, state
from hack.fleet.components import Component, command
from hack.fleet.state import FleetError, ProcessRecord, State

_TAIL_LINES = 15
_POLL_SECONDS = 0.05
_LAST = ("kube-apiserver", "etcd", layout.PROXY)
"""Ended after the rest, in this order: their clients end faster while they answer."""


@dataclass(frozen=True, slots=True)
class Status:
    """One line of `status`. `state`: running, stopped (SIGSTOP), killed (by a verb), crashed, not started."""

    name: str
    state: str
    pid: int = 0
    seconds: float = 0.0
    """Since its start."""
    not_ready: str = ""
    """Why it is not ready; empty when it is, or when it does not run."""
    log_tail: str = ""
    """Of a crashed process."""


class Supervisor:
    """May be used by several threads at once."""

    def __init__(self, folder: Path, current: State, components: Mapping[str, Component]) -> None:
        self.folder = folder
        self.state = current
        self.components = components
        self._lock = threading.Lock()
        self.cancelled = threading.Event()
        """Set: nobody waits any longer for anything to become ready."""

    def component(self, name: str) -> Component:
        """Raises FleetError, naming all there are, when there is none of that name."""
        if name not in self.components:
            raise FleetError(
                f"no process {name!r} in this fleet; there are:\n  " + "\n  ".join(sorted(self.components))
            )
        return self.components[name]

    def exchange(self, component: Component) -> None:
        """Has the component of that name started otherwise from now on; a running process stays as it is."""
        self.components = {**self.components, component.name: component}

    def save(self) -> None:
        with self._lock:
            state.save(self.folder, self.state)

    def records(self) -> dict[str, ProcessRecord]:
        """Of what has been started, by whichever command or test holds this fleet too."""
        with self._lock:
            return self._reload()

    def _reload(self) -> dict[str, ProcessRecord]:
        if (stored := state.load(self.folder)) is not None:
            self.state.processes = stored.processes
        return dict(self.state.processes)

    def is_running(self, name: str) -> bool:
        record = self.records().get(name)
        return record is not None and process.is_alive(record.identity)

    def start(self, name: str) -> bool:
        """Starts the component if it does not run as the table says; False when there was nothing to do.

        A running one with another command line is replaced; a stopped one is continued.
        """
        component = self.component(name)
        argv = command(component)
        record = self.records().get(name)
        if record is not None and process.is_alive(record.identity) and record.argv == argv:
            process.send(record.identity, signal.SIGCONT)
            return False
        if record is not None:
            process.end(record.identity, 5.0)
        log = layout.log_path(self.folder, name)
        offset = log.stat().st_size if log.exists() else 0
        environment = os.environ | dict(component.environment)
        try:
            identity = process.spawn(argv, log, environment, self.folder)
        except OSError as error:
            raise FleetError(f"{name} cannot be started: {error}") from error
        self._record(name, ProcessRecord(identity, argv, state.now(), log_offset=offset))
        return True

    def wait_ready(self, name: str, timeout: float | None = None) -> None:
        """Blocks until the component is ready. Raises FleetError with the end of its log if it dies or is too slow."""
        component = self.component(name)
        deadline = time.monotonic() + (timeout or component.timeout)
        while True:
            alive = self.is_running(name)
            reason = component.ready() if alive else ""
            if not alive or not self.is_running(name):  # somebody else may sit on its port
                raise FleetError(f"{name} has ended while starting:\n{self.log_tail(name)}")
            if not reason:
                return
            if time.monotonic() > deadline:
                raise FleetError(f"{name} is not ready: {reason}\n{self.log_tail(name)}")
            if self.cancelled.wait(_POLL_SECONDS):
                raise FleetError(f"{name} is not ready: {reason}; not waited for any longer")

    def start_and_wait(self, name: str) -> bool:
        """start, what the component needs after that, wait_ready. False when it already ran."""
        component = self.component(name)
        started = self.start(name)
        if started and component.after_start is not None:
            component.after_start()
        self.wait_ready(name)
        return started

    def kill(self, name: str) -> None:
        """SIGKILL, and wait until it is gone. It counts as killed, not as crashed."""
        record = self._alive(name)
        self._record(name, ProcessRecord(
            record.identity, record.argv, record.started_at, killed=True, log_offset=record.log_offset
        ))  # fmt: skip
        process.send(record.identity, signal.SIGKILL)
        if not process.wait_gone(record.identity, 10.0):
            raise FleetError(f"{name} (pid {record.identity.pid}) survives SIGKILL")

    def stop(self, name: str) -> None:
        """SIGSTOP: the process freezes, its connections stay."""
        process.send(self._alive(name).identity, signal.SIGSTOP)

    def cont(self, name: str) -> None:
        """SIGCONT."""
        process.send(self._alive(name).identity, signal.SIGCONT)

    def restart(self, name: str, *, wait: bool = True) -> None:
        """Ends the component (SIGTERM) if it runs, and starts it."""
        record = self.records().get(name)
        if record is not None:
            process.end(record.identity, 5.0)
        self.start(name)
        component = self.component(name)
        if component.after_start is not None:
            component.after_start()
        if wait:
            self.wait_ready(name)

    def end(self, name: str) -> None:
        """Ends the component (SIGTERM, then SIGKILL) if it runs, and forgets it."""
        record = self.records().get(name)
        if record is not None:
            process.end(record.identity, 5.0)
            with self._lock:
                self._reload()
                self.state.processes.pop(name, None)
                state.save(self.folder, self.state)

    def end_all(self) -> list[str]:
        """Ends everything this fleet has started, also what its spec no longer names. Returns the names."""
        records = self.records()
        alive = [n for n, record in records.items() if process.is_alive(record.identity)]
        early = [n for n in alive if n.rpartition("/")[2] not in _LAST]
        groups = [early, *([n for n in alive if n.rpartition("/")[2] == kind] for kind in _LAST)]
        for group in groups:
            for name in group:
                process.send(records[name].identity, signal.SIGTERM)
                process.send(records[name].identity, signal.SIGCONT)
            deadline = time.monotonic() + 3.0
            for name in group:
                identity = records[name].identity
                if not process.wait_gone(identity, max(0.0, deadline - time.monotonic())):
                    process.send(identity, signal.SIGKILL)
                    process.wait_gone(identity, 10.0)
        for record in records.values():
            process.sweep(record.identity)
        with self._lock:
            self.state.processes.clear()
            state.save(self.folder, self.state)
        return alive

    def status(self, *, probe: bool = True) -> list[Status]:
        """Of every component, in the table's order."""
        return [self._status(component, probe) for component in self.components.values()]

    def crashed(self) -> list[Status]:
        """Those that have ended without having been told to."""
        return [s for s in self.status(probe=False) if s.state == "crashed"]

    def log_tail(self, name: str, lines: int = _TAIL_LINES) -> str:
        """The end of the log of the component's last run."""
        path = layout.log_path(self.folder, name)
        record = self.records().get(name)
        if not path.exists():
            return f"  ({path} does not exist)"
        with path.open("rb") as file:
            file.seek(record.log_offset if record else 0)
            found = file.read().decode(errors="replace").splitlines()
        shown = "\n".join(f"  | {line}" for line in found[-lines:]) or "  | (it has printed nothing)"
        return f"  end of {path}:\n{shown}"

    def _status(self, component: Component, probe: bool) -> Status:
        record = self.records().get(component.name)
        if record is None:
            return Status(component.name, "not started")
        seen = process.state_of(record.identity)
        if seen == "gone":
            if record.killed:
                return Status(component.name, "killed", record.identity.pid)
            return Status(component.name, "crashed", record.identity.pid, log_tail=self.log_tail(component.name))
        reason = component.ready() if probe and seen == "running" else ""
        return Status(component.name, seen, record.identity.pid, state.now() - record.started_at, reason)

    def _alive(self, name: str) -> ProcessRecord:
        self.component(name)
        record = self.records().get(name)
        if record is None or not process.is_alive(record.identity):
            raise FleetError(f"{name} does not run")
        return record

    def _record(self, name: str, record: ProcessRecord) -> None:
        with self._lock:
            self._reload()
            self.state.processes[name] = record
            state.save(self.folder, self.state)
