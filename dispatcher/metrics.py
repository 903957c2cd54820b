"""What the dispatcher exports for Prometheus. Never a label per job, pod or uid; series go with their queue or member.

One registry per instance: two dispatchers in one process (a simulation) do not mix.
"""

import platform
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from kube.objects.resources import Resources

NO_QUEUE = "none"
"""Label value for jobs that go through no quota tree."""

_WAIT_BUCKETS = (1, 2, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10240, 20480, 40960)
_CALL_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_PASS_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)

EVICTION_REASONS = (
    "Deleted", "Suspended", "Refused", "Rejected", "ReservationLost", "CopyMissing", "NameTaken", "Changed", "Fenced",
    "Preempted", "Drained",
)  # fmt: skip
DISPATCH_ERRORS = ("Unreachable", "Refused", "Conflict", "Other")


class Metrics:
    """Counters start at 0 for every known label set, so that a query finds them before the first event."""

    def __init__(self, *, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = r = CollectorRegistry()
        self.pending_jobs = Gauge(
            "muster_pending_jobs", "Jobs not admitted yet, by queue and whether they are held.", ["queue", "status"],
            registry=r,
        )  # fmt: skip
        self.admission_attempts = Counter(
            "muster_admission_attempts", "Tries to start an attempt of a job.", ["result"], registry=r
        )
        self.admission_seconds = Histogram(
            "muster_admission_attempt_duration_seconds", "One pass over the waiting jobs.", buckets=_PASS_BUCKETS,
            registry=r,
        )  # fmt: skip
        self.admitted = Counter("muster_admitted_jobs", "Attempts recorded as Scheduled.", registry=r)
        self.finished = Counter("muster_finished_jobs", "Jobs whose end was recorded.", ["result"], registry=r)
        self.evicted = Counter("muster_evicted_jobs", "Placed jobs that were taken back.", ["reason"], registry=r)
        self.queue_wait_seconds = Histogram(
            "muster_queue_wait_time_seconds", "From creation of the job to Scheduled.", ["queue"],
            buckets=_WAIT_BUCKETS, registry=r,
        )  # fmt: skip
        self.dispatched = Counter(
            "muster_dispatched_jobs", "Jobs posted to members.", ["queue", "member_cluster"], registry=r
        )
        self.dispatch_errors = Counter(
            "muster_dispatch_errors", "Steps in members that failed.", ["reason"], registry=r
        )
        self.dispatch_seconds = Histogram(
            "muster_dispatch_duration_seconds", "From the record of Scheduled to the job's copy in the member.",
            buckets=_CALL_BUCKETS, registry=r,
        )  # fmt: skip
        self.sync_lag_seconds = Histogram(
            "muster_status_sync_lag_seconds", "From the first sight of a change to its status on the hub.",
            buckets=_CALL_BUCKETS, registry=r,
        )  # fmt: skip
        self.queue_used = Gauge("muster_queue_used", "Charged in the quota tree.", ["queue", "resource"], registry=r)
        self.queue_min = Gauge("muster_queue_min", "Guaranteed.", ["queue", "resource"], registry=r)
        self.queue_max = Gauge("muster_queue_max", "Limit.", ["queue", "resource"], registry=r)
        self.queue_info = Gauge("muster_queue_info", "1 per node of the quota tree.", ["queue", "parent"], registry=r)
        self.member_up = Gauge("muster_member_cluster_up", "1 while ready.", ["member_cluster"], registry=r)
        self.member_age = Gauge(
            "muster_member_cluster_capacity_age_seconds", "Since the capacity report was known to be true.",
            ["member_cluster"], registry=r,
        )  # fmt: skip
        self.lost_jobs = Gauge(
            "muster_unknown_jobs", "Jobs in members that the hub has no record of.", ["member_cluster"], registry=r
        )
        self.leader = Gauge("muster_leader", "1 while this dispatcher leads.", registry=r)
        build = Gauge("muster_build_info", "Always 1.", ["version", "python"], registry=r)
        build.labels(version, platform.python_version()).set(1)
        for result in ("admitted", "no_room"):
            self.admission_attempts.labels(result)
        for result in ("succeeded", "failed"):
            self.finished.labels(result)
        for reason in (*EVICTION_REASONS, "Other"):
            self.evicted.labels(reason)
        for reason in DISPATCH_ERRORS:
            self.dispatch_errors.labels(reason)
        self._members: set[str] = set()
        self._queues: set[tuple[str, str]] = set()
        self._resources: set[tuple[str, str]] = set()

    def evicted_for(self, reason: str) -> None:
        self.evicted.labels(reason if reason in EVICTION_REASONS else "Other").inc()

    def show_members(self, ages: Mapping[str, tuple[bool, float | None]]) -> None:
        """Name -> (ready, age of the report; None: never reported). Members not named lose their series."""
        for name in self._members - ages.keys():
            for gauge in (self.member_up, self.member_age, self.lost_jobs):
                gauge.remove(name)
        for name, (ready, age) in ages.items():
            self.member_up.labels(name).set(int(ready))
            self.member_age.labels(name).set(float("inf") if age is None else age)
            self.lost_jobs.labels(name)
        self._members = set(ages)

    def show_queues(
        self,
        nodes: Iterable[tuple[str, str, Resources, Resources, Resources]],
        pending: Mapping[tuple[str, str], int],
    ) -> None:
        """nodes: (full name, parent's, min, max, used), amounts in base units. pending: (queue, status) -> jobs."""
        info: set[tuple[str, str]] = set()
        resources: set[tuple[str, str]] = set()
        for name, parent, low, high, used in nodes:
            info.add((name, parent))
            self.queue_info.labels(name, parent).set(1)
            for resource in {*low, *high, *used}:
                resources.add((name, resource))
                scale = 0.001 if resource == "cpu" else 1
                self.queue_used.labels(name, resource).set(used.get(resource, 0) * scale)
                self.queue_min.labels(name, resource).set(low.get(resource, 0) * scale)
                limit = high.get(resource)
                self.queue_max.labels(name, resource).set(float("inf") if limit is None else limit * scale)
        for gone in self._queues - info:
            self.queue_info.remove(*gone)
        for gone in self._resources - resources:
            for gauge in (self.queue_used, self.queue_min, self.queue_max):
                gauge.remove(*gone)
        self._queues, self._resources = info, resources
        self.pending_jobs.clear()
        for labels, count in pending.items():
            self.pending_jobs.labels(*labels).set(count)

    def text(self) -> bytes:
        return generate_latest(self.registry)
