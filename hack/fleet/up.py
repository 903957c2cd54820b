"""`up`: from nothing, or from whatever is there, to a fleet that is ready. `down`: the way back."""

import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from hack.fleet import (
    audit,
    components,
    graph,
    kubeconfig,
    link_control,
    pki,
    process,
    provision,
    scheduler_config,
    state,
    training_operator,
)
from hack.fleet.build import ensure_built
from hack.fleet.layout import Cluster
from hack.fleet.spec import HUB, FleetSpec, MemberSpec, check
from hack.fleet.state import FleetError, State
from hack.fleet.supervisor import Supervisor
from hack.fleet.toolchain import find_kubectl

Say = Callable[[str], None]


def up(folder: Path, spec: FleetSpec, say: Say) -> Supervisor:
    """Brings the fleet up and returns when every component is ready. Doing it again starts what is missing.

    Raises SpecError, FleetError, BuildError or ToolchainError; what has been started stays for `down` or another `up`.
    """
    check(spec)
    binaries = dict(ensure_built(say))
    with state.locked(folder, say):
        current = state.load(folder)
        if current is None:
            current = State(spec=spec, token=secrets.token_hex(16))
        elif any(process.is_alive(r.identity) for r in current.processes.values()):
            _check_same(current.spec, spec)
        current.spec = spec
        supervisor = _open(folder, current, binaries)
        _write_files(folder, current)
        supervisor.save()
        _run(supervisor, binaries["kubectl"], say)
    return supervisor


def attach(folder: Path) -> Supervisor:
    """The supervisor of a fleet that is there. Raises FleetError when there is none."""
    current = state.load(folder)
    if current is None:
        raise FleetError(f"no fleet in {folder}; `python -m hack.fleet up` makes one")
    supervisor = _open(folder, current, ensure_built(lambda _: None))
    supervisor.save()
    return supervisor


def down(folder: Path, say: Say, *, keep: bool = False) -> None:
    """Ends what the fleet started, and only that; removes the folder unless `keep`."""
    if not folder.exists():
        say(f"nothing in {folder}")
        return
    with state.locked(folder, say):
        current = state.load(folder)
        if current is None:
            raise FleetError(f"{folder} holds no fleet: it is left alone")
        ended = Supervisor(folder, current, {}).end_all()
        say(f"ended {len(ended)} processes")
        if not keep:
            shutil.rmtree(folder)


def set_operator(supervisor: Supervisor, member: MemberSpec) -> None:
    """Changes a running member's operator and dialect to those of `member`, and waits until it is ready."""
    current = supervisor.state
    others = tuple(member if m.name == member.name else m for m in current.spec.members)
    spec = msgspec.structs.replace(current.spec, members=others)
    check(spec)
    name = f"{member.name}/operator"
    supervisor.end(name)
    current.spec = spec
    supervisor.components = components.table(supervisor.folder, current, ensure_built(lambda _: None))
    supervisor.save()
    cluster, kubectl = Cluster(member.name, supervisor.folder, current), kubectl_path()
    provision.objects(cluster, kubectl, member)
    if name in supervisor.components:
        if member.operator == "real":
            training_operator.prepare(cluster, kubectl)
        supervisor.start_and_wait(name)


def kubectl_path() -> Path:
    """The kubectl from PATH when it is new enough, else the one built with the API server."""
    return find_kubectl() or ensure_built(lambda _: None)["kubectl"]


def _open(folder: Path, current: State, binaries: Mapping[str, Path]) -> Supervisor:
    return Supervisor(folder, current, components.table(folder, current, binaries))


def _check_same(old: FleetSpec, new: FleetSpec) -> None:
    """Components and operators may change; clusters may not change under running ones."""
    if old.clusters != new.clusters or old.direct != new.direct or old.audit != new.audit:
        raise FleetError(
            "a fleet of another make runs here (its members, --direct or --no-audit differ): "
            "`down` it first, or give this one another --name or --dir"
        )


def _write_files(folder: Path, current: State) -> None:
    for name in current.spec.clusters:
        cluster = Cluster(name, folder, current)
        pki.ensure_cluster(cluster.pki, cluster.identities)
        cluster.config.mkdir(parents=True, exist_ok=True)
        (cluster.config / "audit-policy.yaml").write_text(audit.POLICY)
        kubeconfig.write_all(cluster)
        if not cluster.is_hub:
            pki.ensure_extender(cluster.extender_pki)
            scheduler_config.write(cluster)
            shutil.copyfile(Path(__file__).parent / "stages" / "stages.yaml", cluster.config / "stages.yaml")
    if not current.spec.direct:
        link_control.write_config(folder, current)


def _run(supervisor: Supervisor, kubectl: Path, say: Say) -> None:
    began = time.monotonic()
    speak = threading.Lock()

    def tell(text: str) -> None:
        with speak:
            say(f"{time.monotonic() - began:6.1f}s  {text}")

    def timed(name: str, action: Callable[[], bool]) -> Callable[[], None]:
        def run() -> None:
            start = time.monotonic()
            if action():
                tell(f"{name} ready ({time.monotonic() - start:.1f}s)")

        return run

    tasks = {
        name: graph.Task(timed(name, lambda name=name: supervisor.start_and_wait(name)), component.after)  # type: ignore[misc]
        for name, component in supervisor.components.items()
    }
    for name, (step, after) in _steps(supervisor, kubectl).items():
        tasks[name] = graph.Task(timed(name, _always(step)), after)
    supervisor.cancelled.clear()
    graph.run(tasks, lambda names: tell(f"waiting for {', '.join(names)}"), supervisor.cancelled.set)
    tell(f"up: {len(supervisor.components)} processes in {len(supervisor.state.spec.clusters)} clusters")


def _always(step: Callable[[], None]) -> Callable[[], bool]:
    def run() -> bool:
        step()
        return True

    return run


def _steps(supervisor: Supervisor, kubectl: Path) -> dict[str, tuple[Callable[[], None], tuple[str, ...]]]:
    """The provisioning between the processes: name -> (step, what comes before)."""
    current, folder = supervisor.state, supervisor.folder
    hub = Cluster(HUB, folder, current)
    members = [Cluster(m.name, folder, current) for m in current.spec.members]
    steps: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
        f"{HUB}:objects": (_objects(hub, kubectl, None), (f"{HUB}/kube-apiserver",)),
        f"{HUB}:members": (
            lambda: provision.register_members(hub, members, kubectl),
            (f"{HUB}:objects", *(f"{m.name}:objects" for m in members)),
        ),
    }
    for member in current.spec.members:
        cluster = Cluster(member.name, folder, current)
        steps[f"{member.name}:objects"] = (
            _objects(cluster, kubectl, member),
            (f"{member.name}/kube-apiserver",),
        )
        steps[f"{member.name}:nodes"] = (_first_nodes(cluster, member), (f"{member.name}/kube-apiserver",))
        if member.operator == "real" and "operator" not in current.spec.without:
            steps[f"{member.name}:training-operator"] = (
                _prepare_operator(cluster, kubectl),
                (f"{member.name}:objects",),
            )
    return steps


def _objects(cluster: Cluster, kubectl: Path, member: MemberSpec | None) -> Callable[[], None]:
    return lambda: provision.objects(cluster, kubectl, member)


def _first_nodes(cluster: Cluster, member: MemberSpec) -> Callable[[], None]:
    return lambda: provision.first_nodes(cluster, member)


def _prepare_operator(cluster: Cluster, kubectl: Path) -> Callable[[], None]:
    return lambda: training_operator.prepare(cluster, kubectl)
