"""Where things lie in a fleet's folder, and which link every client takes to its server."""

import os
from dataclasses import dataclass
from pathlib import Path

from hack.fleet import pki
from hack.fleet.pairs import CLUSTERS_OWN, EXTENDER, SECOND, pairs, schedulers
from hack.fleet.spec import HUB, FleetSpec
from hack.fleet.state import State

REPOSITORY = Path(__file__).resolve().parents[2]
PROXY = "proxy"
MUSTER_NAMESPACE = "muster-system"


def default_folder(name: str = "default") -> Path:
    """`${XDG_STATE_HOME:-~/.local/state}/muster/fleet/<name>`."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base / "muster" / "fleet" / name


@dataclass(frozen=True, slots=True)
class Link:
    """The way of one client to one server: a listening port of the proxy that can be cut."""

    client: str
    """Component, such as `member1/extender`."""
    target: str
    """`hub`, `member1` (API servers), or an extender: `member1/extender`."""

    @property
    def name(self) -> str:
        return f"{self.client}>{self.target}"


def links(spec: FleetSpec) -> tuple[Link, ...]:
    """Every link of a fleet."""
    found = [Link(f"{HUB}/dispatcher", HUB)]
    for member in spec.members:
        name = member.name
        beside = {pair.scheduler: pair.extender for pair in pairs(member)}
        found.append(Link(f"{HUB}/dispatcher", name))
        for scheduler in schedulers(member):
            found.append(Link(f"{name}/{scheduler}", name))
            if extender := beside.get(scheduler):
                found += [Link(f"{name}/{scheduler}", f"{name}/{extender}"), Link(f"{name}/{extender}", name)]
        found.append(Link(f"{name}/operator", name))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Access:
    """A kubeconfig: whose it is, and over which component's link; an empty client connects directly."""

    name: str
    identity: str
    client: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """Paths of one cluster, and its ports."""

    name: str
    folder: Path
    state: State

    @property
    def is_hub(self) -> bool:
        return self.name == HUB

    @property
    def pki(self) -> Path:
        return self.folder / self.name / "pki"

    @property
    def extender_pki(self) -> Path:
        return self.folder / self.name / "extender-pki"

    @property
    def config(self) -> Path:
        return self.folder / self.name / "config"

    @property
    def audit_log(self) -> Path:
        return self.folder / self.name / "audit.log"

    @property
    def operator_temp(self) -> Path:
        """The real training operator's TMPDIR: it reads its webhook certificate from below."""
        return self.folder / self.name / "operator"

    def port(self, name: str) -> int:
        return self.state.port(f"{self.name}/{name}")

    def kubeconfig(self, access: str) -> Path:
        return self.folder / self.name / "kubeconfig" / f"{access}.yaml"

    @property
    def identities(self) -> tuple[str, ...]:
        if self.is_hub:
            return (pki.ADMIN, pki.CONTROLLER_MANAGER, pki.DISPATCHER)
        return (
            pki.ADMIN, pki.CONTROLLER_MANAGER, pki.SCHEDULER, pki.KWOK, pki.EXTENDER, pki.DISPATCHER, pki.OPERATOR
        )  # fmt: skip

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Every kubeconfig of the cluster. Those of a standby end in `-2`."""
        clients = {
            pki.DISPATCHER: f"{HUB}/dispatcher",
            pki.SCHEDULER: f"{self.name}/{CLUSTERS_OWN}",
            pki.EXTENDER: f"{self.name}/{EXTENDER}",
            pki.OPERATOR: f"{self.name}/operator",
        }
        found = {name: Access(name, name, clients.get(name, "")) for name in self.identities}
        for pair in () if self.is_hub else pairs(self.state.spec.member(self.name)):
            # In the managed install both are one pod, with one ServiceAccount.
            scheduler = pki.EXTENDER if pair.kind == SECOND else pki.SCHEDULER
            for access in (
                Access(pair.scheduler, scheduler, f"{self.name}/{pair.scheduler}"),
                Access(f"{pki.EXTENDER}{pair.end}", pki.EXTENDER, f"{self.name}/{pair.extender}"),
            ):
                found[access.name] = access
        return tuple(found.values())

    def access(self, name: str) -> Access:
        """Raises KeyError."""
        return {access.name: access for access in self.accesses}[name]


def log_path(folder: Path, component: str) -> Path:
    return folder / "logs" / (component.replace("/", ".") + ".log")


def link_port(state: State, client: str, target: str) -> int:
    """The port `client` dials to reach `target`: the link's, or the server's own in a direct fleet."""
    if state.spec.direct or not client:
        return state.port(target if "/" in target else f"{target}/kube-apiserver")
    return state.port(f"link {Link(client, target).name}")
