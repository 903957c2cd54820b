"""What a fleet consists of: chosen at the first `up`, kept in state.json, the same at every later `up`."""

import re

import msgspec

OPERATORS = ("standin", "real", "none")
"""standin: hack/operator; real: the Kubeflow training operator; none: nobody makes pods for jobs."""
DIALECTS = ("training-operator", "arena")
"""Which PyTorchJob CRD a member has: policy under spec.runPolicy, or (legacy, Arena) at spec level."""
MODES = ("self-managed", "managed")
"""self-managed: the cluster's own kube-scheduler has the extender beside it. managed: it is out of reach and knows
nothing of the extender; a second kube-scheduler, with the extender beside it, serves the schedulerName muster."""
OPTIONAL_COMPONENTS = ("extender", "dispatcher", "operator")
"""What `--without` may leave out."""

HUB = "hub"


class SpecError(ValueError):
    """A fleet that cannot be: the message says what to change."""


class NodeShape(msgspec.Struct, frozen=True):
    """Nodes of one kind: quantities as Kubernetes writes them, `gpus` as nvidia.com/gpu."""

    count: int = 1
    cpu: str = "8"
    memory: str = "32Gi"
    gpus: int = 8
    pods: int = 110
    labels: dict[str, str] = {}
    taints: tuple[str, ...] = ()
    """`key=value:Effect` or `key:Effect`."""
    extended: dict[str, str] = {}
    """Further resources, such as rdma/hca."""
    prefix: str = ""
    """Of the nodes' names; empty: the member's name."""


class MemberSpec(msgspec.Struct, frozen=True):
    name: str
    operator: str = "real"
    dialect: str = "training-operator"
    operator_options: tuple[str, ...] = ()
    """More command-line arguments of the operator."""
    nodes: tuple[NodeShape, ...] = (NodeShape(count=3),)
    """Made at `up` only if the member has no node yet."""
    mode: str = "self-managed"
    standby: bool = False
    """A second pair of scheduler and extender that is elected when the first does not lead."""


class FleetSpec(msgspec.Struct, frozen=True):
    members: tuple[MemberSpec, ...]
    without: frozenset[str] = frozenset()
    """Of OPTIONAL_COMPONENTS."""
    direct: bool = False
    """Clients reach the API servers without the link proxy: no `cut`, but nothing slows a benchmark."""
    audit: bool = True
    """Write an audit log in every cluster."""

    @property
    def clusters(self) -> tuple[str, ...]:
        return (HUB, *(m.name for m in self.members))

    def member(self, name: str) -> MemberSpec:
        """Raises SpecError when there is no such member."""
        for member in self.members:
            if member.name == name:
                return member
        raise SpecError(f"no member {name!r} in this fleet; there are: {', '.join(m.name for m in self.members)}")


def default_members(count: int) -> tuple[MemberSpec, ...]:
    """member1..memberN with three 8-CPU, 8-GPU nodes each."""
    return tuple(MemberSpec(name=f"member{i}") for i in range(1, count + 1))


def check(spec: FleetSpec) -> None:
    """Raises SpecError on names, operators or components that do not exist."""
    names = [m.name for m in spec.members]
    if not names:
        raise SpecError("a fleet has at least one member")
    if len(set(names)) != len(names) or HUB in names:
        raise SpecError(f"member names must be unique and not {HUB!r}: {', '.join(names)}")
    for member in spec.members:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", member.name):
            raise SpecError(f"member name {member.name!r} must be lower-case letters, digits and dashes, at most 32")
        _one_of(f"operator of {member.name}", member.operator, OPERATORS)
        _one_of(f"dialect of {member.name}", member.dialect, DIALECTS)
        _one_of(f"mode of {member.name}", member.mode, MODES)
        if member.operator == "real" and member.dialect == "arena":
            raise SpecError(
                f"{member.name}: the real operator knows only the training-operator dialect; use operator standin"
            )
        if "extender" in spec.without and (member.standby or member.mode == "managed"):
            raise SpecError(f"{member.name}: without extender there is neither a standby nor the managed mode")
    for component in spec.without:
        _one_of("--without", component, OPTIONAL_COMPONENTS)


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SpecError(f"{what}: {value!r} is not one of {', '.join(allowed)}")
