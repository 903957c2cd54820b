"""The fleet as tests and scripts see it.

    with Fleet.running(folder, spec, print) as fleet:
        fleet.members["member1"].kubectl("get", "nodes")
        fleet.processes["member1/extender"].kill()

Blocking throughout (processes, kubectl, REST); `Cluster.api()` gives muster's own asynchronous client.
"""

import contextlib
import dataclasses
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from hack.fleet import audit, layout, link_control, nodes, pki, proxy, up
from hack.fleet.audit import AuditEvent
from hack.fleet.rest import Json, Rest
from hack.fleet.spec import HUB, FleetSpec, NodeShape
from hack.fleet.state import FleetError
from hack.fleet.supervisor import Supervisor

if TYPE_CHECKING:
    from kube.api.client import HttpApi


class Process:
    """One component of a running fleet."""

    def __init__(self, name: str, supervisor: Supervisor) -> None:
        self.name = name
        self._supervisor = supervisor

    @property
    def pid(self) -> int:
        return self._supervisor.records()[self.name].identity.pid

    @property
    def is_running(self) -> bool:
        return self._supervisor.is_running(self.name)

    def start(self) -> None:
        """Starts it if it does not run, and waits until it is ready."""
        self._supervisor.start_and_wait(self.name)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._supervisor.kill(self.name)

    def stop(self) -> None:
        """SIGSTOP."""
        self._supervisor.stop(self.name)

    def cont(self) -> None:
        """SIGCONT."""
        self._supervisor.cont(self.name)

    def restart(self, *, wait: bool = True) -> None:
        """SIGTERM and a new start; `wait` until it is ready."""
        self._supervisor.restart(self.name, wait=wait)

    @contextlib.contextmanager
    def with_arguments(self, *more: str) -> Iterator[None]:
        """Restarted with more arguments for the length of the block; then as it was before."""
        before = self._supervisor.component(self.name)
        try:
            self._supervisor.exchange(dataclasses.replace(before, argv=[*before.argv, *more]))
            self.restart()
            yield
        finally:
            self._supervisor.exchange(before)
            self.restart()

    def wait_ready(self, timeout: float | None = None) -> None:
        """Raises FleetError with the end of its log if it dies or is not ready within `timeout` seconds."""
        self._supervisor.wait_ready(self.name, timeout)

    def log_tail(self, lines: int = 30) -> str:
        """The end of the log of its last run."""
        return self._supervisor.log_tail(self.name, lines)

    @property
    def log(self) -> Path:
        return layout.log_path(self._supervisor.folder, self.name)


class Cluster:
    """The hub or a member."""

    def __init__(self, name: str, supervisor: Supervisor, kubectl: Path) -> None:
        self.name = name
        self._layout = layout.Cluster(name, supervisor.folder, supervisor.state)
        self._kubectl = kubectl

    @property
    def kubeconfig(self) -> Path:
        """The admin's."""
        return self.kubeconfig_of(pki.ADMIN)

    def kubeconfig_of(self, identity: str) -> Path:
        """Of an identity in hack/fleet/pki.py, such as pki.EXTENDER; over that identity's link."""
        return self._layout.kubeconfig(identity)

    def port(self, name: str) -> int:
        """Such as `extender`, `extender metrics`, `kube-scheduler`."""
        return self._layout.port(name)

    @property
    def extender_pki(self) -> Path:
        """ca.crt, client.crt, client.key: to call the extender as its kube-scheduler does."""
        return self._layout.extender_pki

    @property
    def config(self) -> Path:
        """The folder with scheduler-config.yaml, stages.yaml, audit-policy.yaml."""
        return self._layout.config

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 60.0
    ) -> "subprocess.CompletedProcess[str]":
        """Runs kubectl as admin. With `check`, a failure is a FleetError with kubectl's words."""
        command = [
            str(self._kubectl),
            f"--kubeconfig={self.kubeconfig}",
            f"--cache-dir={self._layout.folder / 'kubectl-cache'}",
            *arguments,
        ]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
        if check and done.returncode != 0:
            raise FleetError(
                f"{self.name}: kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}"
            )
        return done

    def apply(self, *manifests: str | Path | Json) -> None:
        """`kubectl apply -f -` of YAML text, files or documents."""
        for manifest in manifests:
            if isinstance(manifest, Path):
                text = manifest.read_text()
            else:
                text = manifest if isinstance(manifest, str) else yaml.safe_dump(manifest)
            self.kubectl("apply", "-f", "-", stdin=text)

    def rest(self) -> Rest:
        """A new blocking client as admin; close it."""
        return Rest(self.kubeconfig)

    def get(self, path: str) -> Json:
        """GET of a path as admin."""
        with contextlib.closing(self.rest()) as rest:
            return rest.get(path)

    @contextlib.asynccontextmanager
    async def api(self, identity: str = pki.ADMIN) -> "AsyncIterator[HttpApi]":
        """The product's own client for an identity: `async with cluster.api() as api: ...`."""
        from kube.api.client import HttpApi  # noqa: PLC0415 - slow to import, and of no use to the command line

        async with await HttpApi.from_kubeconfig(self.kubeconfig_of(identity), user_agent="fleet-tests") as api:
            yield api

    def audit_mark(self) -> int:
        """An offset to give to audit_events later."""
        return audit.size(self._layout.audit_log)

    def audit_events(self, since: int = 0) -> list[AuditEvent]:
        """All writes from the offset on, in the order in which they were finished."""
        return list(audit.read(self._layout.audit_log, since))

    def node_names(self) -> list[str]:
        with contextlib.closing(self.rest()) as rest:
            return nodes.names(rest)

    def add_nodes(self, *shapes: NodeShape) -> list[str]:
        """Adds nodes; returns their names."""
        with contextlib.closing(self.rest()) as rest:
            return nodes.add(rest, self.name, shapes)

    def set_nodes(self, *shapes: NodeShape) -> list[str]:
        """Makes the nodes exactly these (named MEMBER-0...); pods on the old ones are deleted. Returns the names."""
        with contextlib.closing(self.rest()) as rest:
            return nodes.replace_all(rest, self.name, shapes)

    def delete_node(self, name: str) -> None:
        with contextlib.closing(self.rest()) as rest:
            rest.delete(f"/api/v1/nodes/{name}")


class Fleet:
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        kubectl = up.kubectl_path()
        self.folder = supervisor.folder
        self.hub = Cluster(HUB, supervisor, kubectl)
        self.members = {m.name: Cluster(m.name, supervisor, kubectl) for m in supervisor.state.spec.members}
        self.processes = {name: Process(name, supervisor) for name in supervisor.components}

    @classmethod
    def up(cls, folder: Path, spec: FleetSpec, say: Callable[[str], None] = print) -> "Fleet":
        """Brings a fleet up, or completes it. Raises what hack.fleet.up.up raises."""
        return cls(up.up(folder, spec, say))

    @classmethod
    def attach(cls, folder: Path) -> "Fleet":
        """A fleet that runs already. Raises FleetError when there is none."""
        return cls(up.attach(folder))

    @classmethod
    @contextlib.contextmanager
    def running(cls, folder: Path, spec: FleetSpec, say: Callable[[str], None] = print) -> "Iterator[Fleet]":
        """A fleet that is ended with the block. Its folder stays, for the logs."""
        try:
            yield cls.up(folder, spec, say)
        finally:
            up.down(folder, say, keep=True)

    @property
    def spec(self) -> FleetSpec:
        return self._supervisor.state.spec

    @property
    def clusters(self) -> dict[str, Cluster]:
        return {HUB: self.hub} | self.members

    def cut(self, client: str, target: str = "") -> None:
        """Breaks the connections of a component (to `target`, else all) and refuses new ones."""
        self._set_links(client, target, proxy.CUT)

    def hang(self, client: str, target: str = "") -> None:
        """Keeps the connections of a component, but nothing passes, as with lost packets."""
        self._set_links(client, target, proxy.HANG)

    def heal(self, client: str = "", target: str = "") -> None:
        """Opens the links of a component, or of all."""
        if client:
            self._set_links(client, target, proxy.OPEN)
            return
        for link in layout.links(self.spec):
            link_control.set_mode(self._supervisor.state, link, proxy.OPEN)

    def set_operator(
        self, member: str, operator: str, dialect: str = "training-operator", options: tuple[str, ...] = ()
    ) -> None:
        """Gives a running member another operator (`real`, `standin`, `none`) and PyTorchJob dialect.

        `options` are further arguments of the operator. The member should hold no jobs.
        """
        spec = msgspec.structs.replace(
            self.spec.member(member), operator=operator, dialect=dialect, operator_options=options
        )
        up.set_operator(self._supervisor, spec)
        self.processes = {name: Process(name, self._supervisor) for name in self._supervisor.components}

    def check(self) -> None:
        """Raises FleetError, with the ends of their logs, when processes have crashed."""
        if crashed := self._supervisor.crashed():
            raise FleetError("crashed:\n" + "\n".join(f"{c.name}\n{c.log_tail}" for c in crashed))

    def restore(self) -> None:
        """Undoes what a test has done to processes and links: everything open, running and ready again."""
        if not self.spec.direct:
            self.processes[layout.PROXY].start()
            self.heal()
        for name in self.processes:
            self._supervisor.start(name)
        for process in self.processes.values():
            process.wait_ready()

    def down(self, *, keep: bool = False) -> None:
        up.down(self.folder, lambda _: None, keep=keep)

    def _set_links(self, client: str, target: str, mode: str) -> None:
        for link in link_control.select(self._supervisor.state, client, target):
            link_control.set_mode(self._supervisor.state, link, mode)


def wait_for(what: str, condition: Callable[[], Any], timeout: float = 30.0, interval: float = 0.05) -> Any:
    """Polls until `condition` returns something true, and returns it. Raises AssertionError naming `what`."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g}s: {what}")
        time.sleep(interval)
    return found
