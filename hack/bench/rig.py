"""The control plane that is measured: etcd and an API server, and of the schedulers the one whose turn it is.

Everything else of a fleet is ended once it has set the cluster up: two cores are shared by whatever runs.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from hack.bench.scenario import NAMESPACE
from hack.fleet import layout, pki, up
from hack.fleet.components import Component
from hack.fleet.fleet import wait_for
from hack.fleet.rest import Rest, RestError
from hack.fleet.spec import FleetSpec, MemberSpec
from hack.fleet.supervisor import Supervisor
from kube.api.api import NODES, POD_GROUPS, PODS, Resource
from kube.api.client import ClientOptions, HttpApi

MEMBER = "member1"
API_SERVER = f"{MEMBER}/kube-apiserver"
ETCD = f"{MEMBER}/etcd"
STOCK = f"{MEMBER}/stock-scheduler"
SCHEDULER = f"{MEMBER}/muster-scheduler"
EXTENDER = f"{MEMBER}/muster-extender"

_SPEC = FleetSpec(
    members=(MemberSpec(name=MEMBER, operator="none", nodes=()),),
    without=frozenset({"dispatcher", "operator"}),
    direct=True,
    audit=False,
)
_CONFIG = "--config="
_CALLS_AT_ONCE = 24
_KINDS: dict[str, Resource] = {"Pod": PODS, "PodGroup": POD_GROUPS, "Node": NODES}
_encode = msgspec.json.Encoder().encode

Json = dict[str, Any]


class Rig:
    """Blocking. Processes are named by the constants above."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._cluster = layout.Cluster(MEMBER, supervisor.folder, supervisor.state)
        supervisor.components = dict(supervisor.components) | {
            component.name: component for component in _contestants(supervisor.components)
        }

    @classmethod
    @contextlib.contextmanager
    def running(cls, folder: Path, say: Callable[[str], None]) -> "Iterator[Rig]":
        """Ended with the block; the folder stays for the logs until the next one. Raises what hack.fleet.up raises."""
        if folder.exists() and any(folder.iterdir()):
            up.down(folder, say)
        try:
            rig = cls(up.up(folder, _SPEC, say))
            rig.set_up()
            yield rig
        finally:
            up.down(folder, say, keep=True)

    def set_up(self) -> None:
        """The namespace, with the account that pods ask for; then whatever is not measured is ended."""
        with contextlib.closing(self.rest()) as rest:
            rest.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            wait_for("the namespace's ServiceAccount", lambda: _has_account(rest, NAMESPACE))
        for name in self._supervisor.records():
            if name not in (API_SERVER, ETCD):
                self._supervisor.end(name)

    def start(self, name: str) -> None:
        """Returns once it is ready."""
        self._supervisor.start_and_wait(name)

    def stop(self, name: str) -> None:
        """SIGSTOP: it keeps its watches and does nothing."""
        self._supervisor.stop(name)

    def release(self, name: str) -> None:
        """SIGCONT."""
        self._supervisor.cont(name)

    def end(self, *names: str) -> None:
        for name in names:
            self._supervisor.end(name)

    def pid(self, name: str) -> int:
        return self._supervisor.records()[name].identity.pid

    def log_tail(self, name: str) -> str:
        return self._supervisor.log_tail(name)

    def rest(self) -> Rest:
        return Rest(self._cluster.kubeconfig(pki.ADMIN), timeout=120.0)

    def create(self, documents: Iterable[Json]) -> None:
        """Many at once, begun in the order given."""
        asyncio.run(self._create(list(documents)))

    async def _create(self, documents: list[Json]) -> None:
        queue = iter(documents)

        async def worker(api: HttpApi) -> None:
            for document in queue:
                namespace = document["metadata"].get("namespace", "")
                await api.create(_KINDS[document["kind"]], _encode(document), namespace)

        async with self._api() as api, asyncio.TaskGroup() as group:
            for _ in range(_CALLS_AT_ONCE):
                group.create_task(worker(api))

    @contextlib.asynccontextmanager
    async def _api(self) -> AsyncIterator[HttpApi]:
        options = ClientOptions(call_seconds=60.0, connections=_CALLS_AT_ONCE)
        kubeconfig = self._cluster.kubeconfig(pki.ADMIN)
        async with await HttpApi.from_kubeconfig(kubeconfig, user_agent="bench", options=options) as api:
            yield api


def _has_account(rest: Rest, namespace: str) -> bool:
    try:
        rest.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
    except RestError as error:
        if error.status == 404:
            return False
        raise
    return True


def _contestants(components: Mapping[str, Component]) -> list[Component]:
    """The programs as the fleet starts them, but without the schedulers' leader election: a scheduler that is stopped
    until the pods exist would lose its Lease. Stock is the same scheduler with the same configuration but extenders.
    The extender's Lease is long: what a machine busy with something else costs is not what is measured."""
    scheduler, extender = components[f"{MEMBER}/kube-scheduler"], components[f"{MEMBER}/extender"]
    argv = [*extender.argv, "--scheduler-leader-election=false", "--lease-seconds=90"]
    return [
        _scheduler(STOCK, scheduler, extenders=False),
        _scheduler(SCHEDULER, scheduler, extenders=True),
        replace(extender, name=EXTENDER, argv=argv, after=(), kept=False),
    ]


def _scheduler(name: str, fleets: Component, *, extenders: bool) -> Component:
    [position] = [index for index, word in enumerate(fleets.argv) if word.startswith(_CONFIG)]
    path = Path(fleets.argv[position].removeprefix(_CONFIG))
    document = yaml.safe_load(path.read_text())
    document["leaderElection"] = {"leaderElect": False}
    if not extenders:
        del document["extenders"]
    changed = path.with_name(f"{name.rpartition('/')[2]}.yaml")
    changed.write_text(yaml.safe_dump(document, sort_keys=False))
    argv = [*fleets.argv[:position], f"{_CONFIG}{changed}", *fleets.argv[position + 1 :]]
    return replace(fleets, name=name, argv=argv, after=(), kept=False)
