"""What the extender exports for Prometheus. Never a label per job, pod, uid or node: nothing per gang outlives it.

Kube-scheduler has no metric per extender, so request counts and durations are measured here. Each instance has its
own registry: two extenders in one process (a simulation) do not mix.
"""

import platform
from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from extender.core import Metrics as CoreMetrics
from extender.effects import Outcome

VERBS = ("filter", "preempt", "bind")
BIND_RESULTS = {outcome: outcome.name.lower() for outcome in Outcome}

_REQUEST_BUCKETS = (
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.3, 0.5, 1, 2, 4, 8, 15, 30, 60, 75, 90
)  # fmt: skip
"""0.5 ms doubling, with edges at filter's own deadline (0.3 s) and the two httpTimeouts (2 s, 75 s)."""
_API_BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.5, 1, 2, 4)
_ASSEMBLY_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640)


class Metrics:
    """Counters start at 0 for every known label set, so that a query finds them before the first event."""

    def __init__(self, *, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self._gang_states: set[str] = set()
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
        for result in BIND_RESULTS.values():
            self.binds.labels(result)
        for result in ("landed", "timeout"):
            self.gang_assembly_seconds.labels(result)

    def watching(self, resource: str, last_event_age: Callable[[], float]) -> None:
        """Declares a watched resource."""
        self.watch_restarts.labels(resource)
        self.cache_last_event_age.labels(resource).set_function(last_event_age)

    def posted(self, outcome: Outcome, seconds: float) -> None:
        """One Binding came to an end."""
        self.binds.labels(BIND_RESULTS[outcome]).inc()
        if outcome is not Outcome.NOT_SENT:
            self.bind_seconds.observe(seconds)

    def take(self, core: CoreMetrics) -> None:
        """Takes over a snapshot of the core; a state that no gang is in any more goes to 0."""
        self._gang_states.update(core.gangs)
        for state in self._gang_states:
            self.gangs.labels(state).set(core.gangs.get(state, 0))

    def exposition(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)
