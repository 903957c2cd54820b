"""Which member to ask next: candidates in order, and one reason per member that is none.

A member is judged on its reported node shapes with the room taken off that was promised to others and that the report
does not include yet (F3). The reservation in the member decides; this only orders the asking.
"""

from collections.abc import Iterable, Sequence

import msgspec
from kube.objects.resources import Resources

from dispatcher.jobs import Job
from dispatcher.policies import Policy
from kube.objects.binding import ClusterReason, Component
from kube.objects.capacity import NodeShape
from kube.objects.nodes import Taint


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What the hub knows of a member at the moment of the decision. Ages in seconds on the hub's monotonic clock."""

    name: str
    labels: dict[str, str] = {}
    """Of the MemberCluster's metadata and spec together."""
    taints: tuple[Taint, ...] = ()
    ready: bool = False
    not_ready_seconds: float = 0
    not_ready_reason: str = ""
    report_age: float | None = None
    """None: never reported."""
    cordoned: bool = False
    fenced: bool = False
    replaced: bool = False
    """Another kube-system uid than accepted (PROTOCOL rule 17)."""
    dialect: str = ""
    scheduler_name: str = ""
    cluster_uid: str = ""
    shapes: tuple[NodeShape, ...] = ()
    shapes_left_out: int = 0
    total: Resources = {}
    includes: frozenset[tuple[str, int]] = frozenset()
    """(id, epoch) that the report already counts."""
    namespaces: frozenset[str] | None = None
    """None: missing namespaces are created."""
    priority_classes: dict[str, int] | None = None
    """None: not known, not judged."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt of another job whose pods do not all show in a report yet."""

    cluster: str
    job_id: str
    epoch: int
    components: tuple[Component, ...]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    score: tuple[float, ...]
    """Lower is tried first."""
    fits: bool = True
    """False: only worth a claim."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    ranked: tuple[Candidate, ...]
    """Members where the whole gang fits by report, best first."""
    refused: tuple[ClusterReason, ...]
    """Sorted by cluster, one line each."""
    short: dict[str, str] = {}
    """cluster -> resource whose lack refused it, for members refused for room alone."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    report_max_age: float = 30.0


DEFAULTS = Settings()


def choose(
    job: Job,
    policy: Policy,
    members: Iterable[Member],
    promises: Sequence[Promise] = (),
    *,
    job_id: str = "",
    excluded: Iterable[str] = (),
    priority_classes: dict[str, int] | None = None,
    settings: Settings = DEFAULTS,
) -> Choice:
    """Candidates in the order to ask. `excluded`: members that refused this job lately."""
    raise NotImplementedError
