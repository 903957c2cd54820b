"""Every sentence about placing a job that users read, in one place.

Messages of *events* carry nothing that changes while nothing happens, so that equal events aggregate (`event_form`);
the binding's condition and `kubectl amc explain` may tell ages.
"""

import re
from collections.abc import Mapping, Sequence

from kube.objects.binding import ClusterReason, Component
from kube.objects.quantity import format_amount

SCHEDULED = "ScheduleBindingSucceed"
FAILED = "ScheduleBindingFailed"
EVENT_SOURCE = "default-scheduler"
"""What Karmada and ACK One write as the source of these events."""

_AGES = re.compile(r"(?: for)? \d+(?:\.\d+)?s(?: ago)?\b")


def scheduled(cluster: str, components: Sequence[Component]) -> str:
    """As in "Binding has been scheduled successfully. Result: {c1:0,[{master 1} {worker 2}]}"."""
    parts = " ".join(f"{{{component.name} {component.replicas}}}" for component in components)
    return f"Binding has been scheduled successfully. Result: {{{cluster}:0,[{parts}]}}"


def waiting(reasons: Sequence[ClusterReason], quota: str = "") -> str:
    """One line: "c1: largest fit 7 of 9 pods (nvidia.com/gpu); c2: not ready 42s; queue root/child-2: max-jobs 1 of 1
    used". Sorted by cluster, the queue last."""
    lines = [f"{reason.cluster}: {reason.message}" for reason in sorted(reasons, key=lambda reason: reason.cluster)]
    if quota:
        lines.append(quota)
    return "; ".join(lines) or "no member cluster is joined: make a MemberCluster"


def event_form(text: str) -> str:
    """The same sentence without ages ("not ready 42s" is "not ready"), so that it stays equal while nothing happens."""
    return _AGES.sub("", text)


def largest_fit(fit: int, of: int, short: str) -> str:
    """As in "largest fit 7 of 9 pods (nvidia.com/gpu)"."""
    return f"largest fit {fit} of {of} pods" + (f" ({short})" if short else "")


def seconds(age: float) -> str:
    """As in "42s"."""
    return f"{int(age)}s"


def amounts(vector: Mapping[str, int]) -> str:
    """As in "cpu 4010m, memory 4Gi", sorted."""
    return ", ".join(f"{name} {format_amount(name, vector[name])}" for name in sorted(vector)) or "nothing"
