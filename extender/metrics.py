"""What the extender exports for Prometheus. Never a label per job, pod, uid or node: nothing per gang outlives it.

Kube-scheduler has no metric per extender, so request counts and durations are measured here. Each instance has its
own registry: two extenders in one process (a simulation) do not mix.
"""

import platform
from collections.abc import Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from kube.api.clock import Clock

VERBS = ("filter", "preempt", "bind")
BIND_RESULTS = ("bound", "already_bound", "fenced", "refused", "unreachable")
"""bound: 201. already_bound: 409, the pod is on this very node. fenced: not posted, too late or not leading.
refused: the API server said no. unreachable: no answer, the Binding may exist."""

_REQUEST_BUCKETS = (
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.3, 0.5, 1, 2, 4, 8, 15, 30, 60, 75, 90
)  # fmt: skip
"""0.5 ms doubling, with edges at filter's own deadline (0.3 s) and the two httpTimeouts (2 s, 75 s)."""
_API_BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.5, 1, 2, 4)
_ASSEMBLY_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640)


class Metrics:
    """Counters start at 0 for every known label set, so that a query finds them before the first event."""

    def __init__(self, clock: Clock, *, version: str) -> None:
        disable_created_metrics()
        self.registry = registry = CollectorRegistry()
        self._clock = clock
        self._last_event: dict[str, float] = {}
        self.requests = Counter(
            "muster_extender_requests_total",
            "Requests of kube-scheduler by verb and HTTP status.",
            ["verb", "code"],
            registry=registry,
        )
        self.request_seconds = Histogram(
            "muster_extender_request_duration_seconds",
            "Time from the request's head to its reply, held binds included.",
            ["verb"],
            buckets=_REQUEST_BUCKETS,
            registry=registry,
        )
        self.in_flight = Gauge(
            "muster_extender_requests_in_flight", "Requests being answered or held.", ["verb"], registry=registry
        )
        self.gangs = Gauge("muster_gangs", "Gangs known, by state.", ["state"], registry=registry)
        self.gang_assembly_seconds = Histogram(
            "muster_gang_assembly_seconds",
            "From the first member at the barrier to the end of the round.",
            ["result"],
            buckets=_ASSEMBLY_BUCKETS,
            registry=registry,
        )
        self.gang_timeouts = Counter(
            "muster_gang_timeouts_total", "Rounds of held members that ended without the gang.", registry=registry
        )
        self.binds = Counter("muster_binds_total", "Bindings by result.", ["result"], registry=registry)
        self.bind_seconds = Histogram(
            "muster_bind_duration_seconds",
            "Time of one Binding POST at the API server.",
            buckets=_API_BUCKETS,
            registry=registry,
        )
        self.watch_restarts = Counter(
            "muster_watch_restarts_total",
            "Watches begun anew after an error or an expired version.",
            ["resource"],
            registry=registry,
        )
        self.cache_last_event_age = Gauge(
            "muster_cache_last_event_age_seconds",
            "Seconds since the watch last delivered anything, bookmarks included.",
            ["resource"],
            registry=registry,
        )
        self.leader = Gauge("muster_leader", "1 while this process decides.", registry=registry)
        build = Gauge("muster_build_info", "Always 1.", ["version", "python"], registry=registry)
        build.labels(version, platform.python_version()).set(1)
        for verb in VERBS:
            self.requests.labels(verb, "200")
            self.request_seconds.labels(verb)
            self.in_flight.labels(verb)
        for result in BIND_RESULTS:
            self.binds.labels(result)
        for result in ("landed", "timeout"):
            self.gang_assembly_seconds.labels(result)

    def watching(self, resource: str) -> None:
        """Declares a watched resource."""
        self.watch_restarts.labels(resource)
        self.seen(resource)
        self.cache_last_event_age.labels(resource).set_function(
            lambda: self._clock.monotonic() - self._last_event[resource]
        )

    def seen(self, resource: str) -> None:
        """The watch of `resource` delivered something just now."""
        self._last_event[resource] = self._clock.monotonic()

    def set_gangs(self, by_state: Mapping[str, int]) -> None:
        """Sets the gauge; a state that no gang is in any more goes to 0."""
        for sample in self.gangs.collect()[0].samples:
            if sample.labels["state"] not in by_state:
                self.gangs.labels(sample.labels["state"]).set(0)
        for state, count in by_state.items():
            self.gangs.labels(state).set(count)

    def exposition(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)
