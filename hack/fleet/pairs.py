"""Which kube-schedulers a member has, and which of them has an extender beside it."""

from dataclasses import dataclass

from hack.fleet.spec import MemberSpec

CLUSTERS_OWN = "kube-scheduler"
SECOND = "muster-scheduler"
"""The scheduler of the managed install (manifests/base/member/second-scheduler.yaml), and its Lease."""
EXTENDER = "extender"


@dataclass(frozen=True, slots=True)
class Pair:
    """A kube-scheduler and the extender beside it, as on one control-plane node or in one pod."""

    kind: str
    """CLUSTERS_OWN or SECOND."""
    end: str = ""
    """Of the names of the second one: `-2`."""
    host: str = ""
    """Host name, as kube-scheduler puts it into its Lease; empty: this machine's."""

    @property
    def scheduler(self) -> str:
        """Component, without the member's name."""
        return f"{self.kind}{self.end}"

    @property
    def extender(self) -> str:
        return f"{EXTENDER}{self.end}"


def pairs(member: MemberSpec) -> tuple[Pair, ...]:
    """One, or with a standby two, which are told apart by their host names."""
    kind = SECOND if member.mode == "managed" else CLUSTERS_OWN
    if not member.standby:
        return (Pair(kind),)
    return tuple(Pair(kind, end, f"{member.name}-control-plane{end or '-1'}") for end in ("", "-2"))


def schedulers(member: MemberSpec) -> tuple[str, ...]:
    """Every kube-scheduler of the member, as components."""
    alone = (CLUSTERS_OWN,) if member.mode == "managed" else ()
    return (*alone, *(pair.scheduler for pair in pairs(member)))
