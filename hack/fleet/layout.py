"""Where things lie in a fleet's folder, and which link every client takes to its server."""

import os
from dataclasses import dataclass
from pathlib import Path

from hack.fleet import pki
from hack.fleet.spec import HUB, FleetSpec
from hack.fleet.state import State

REPOSITORY = Path(__file__).resolve().parents[2]
PROXY = "proxy"
EXTENDER_TARGET = "extender"
"""As the end of a link: the member's extender, not an API server."""


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
    """`hub`, `member1` (API servers), or `member1/extender`."""

    @property
    def name(self) -> str:
        return f"{self.client}>{self.target}"


def links(spec: FleetSpec) -> tuple[Link, ...]:
    """Every link of a fleet."""
    found = [Link(f"{HUB}/dispatcher", HUB)]
    for member in spec.members:
        found += [
            Link(f"{HUB}/dispatcher", member.name),
            Link(f"{member.name}/kube-scheduler", member.name),
            Link(f"{member.name}/kube-scheduler", f"{member.name}/{EXTENDER_TARGET}"),
            Link(f"{member.name}/extender", member.name),
            Link(f"{member.name}/operator", member.name),
        ]
    return tuple(found)


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

    def kubeconfig(self, identity: str) -> Path:
        return self.folder / self.name / "kubeconfig" / f"{identity}.yaml"

    @property
    def identities(self) -> tuple[str, ...]:
        if self.is_hub:
            return (pki.ADMIN, pki.CONTROLLER_MANAGER, pki.DISPATCHER)
        return (
            pki.ADMIN, pki.CONTROLLER_MANAGER, pki.SCHEDULER, pki.KWOK, pki.EXTENDER, pki.DISPATCHER, pki.OPERATOR
        )  # fmt: skip

    def client_of(self, identity: str) -> str:
        """The component whose link an identity's kubeconfig uses; empty for those that connect directly."""
        return {
            pki.SCHEDULER: f"{self.name}/kube-scheduler",
            pki.EXTENDER: f"{self.name}/extender",
            pki.OPERATOR: f"{self.name}/operator",
            pki.DISPATCHER: f"{HUB}/dispatcher",
        }.get(identity, "")


def log_path(folder: Path, component: str) -> Path:
    return folder / "logs" / (component.replace("/", ".") + ".log")


def link_port(state: State, client: str, target: str) -> int:
    """The port `client` dials to reach `target`: the link's, or the server's own in a direct fleet."""
    if state.spec.direct or not client:
        return state.port(target if "/" in target else f"{target}/kube-apiserver")
    return state.port(f"link {Link(client, target).name}")
