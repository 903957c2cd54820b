"""Every sentence that the dispatcher says to users, in one place.

Event messages carry no counters or times that change while nothing happens (so that events aggregate); the binding's
condition and `kubectl amc explain` may.
"""

from collections.abc import Mapping, Sequence

from kube.objects.binding import ClusterReason, Component

SCHEDULED = "ScheduleBindingSucceed"
FAILED = "ScheduleBindingFailed"
EVENT_SOURCE = "default-scheduler"
"""What Karmada and ACK One write as the source of these events."""


def scheduled(cluster: str, components: Sequence[Component]) -> str:
    """"Binding has been scheduled successfully. Result: {c1:0,[{master 1} {worker 2}]}", existing components only."""
    raise NotImplementedError


def waiting(reasons: Sequence[ClusterReason], quota: str = "") -> str:
    """One line: "c1: largest fit 7 of 9 pods (nvidia.com/gpu); c2: not ready 42s; queue root/child-2: max-jobs 1 of 1
    used". Sorted by cluster, the queue last."""
    raise NotImplementedError


def event_form(text: str) -> str:
    """The same sentence without what changes by itself: durations and ages taken out."""
    raise NotImplementedError


def largest_fit(fit: int, of: int, short: str) -> str:
    """"largest fit 7 of 9 pods (nvidia.com/gpu)"."""
    raise NotImplementedError


def amounts(vector: Mapping[str, int]) -> str:
    """"cpu 4010m, memory 4Gi", sorted."""
    raise NotImplementedError
