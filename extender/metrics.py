"""What the extender exports for Prometheus. Never a label per job, pod, uid or node: nothing per gang outlives it.

Kube-scheduler has no metric per extender, so request counts and durations are measured here. Each instance has its
own registry: two extenders in one process (a simulation) do not mix.
"""

import platform
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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


class CoreCollector(Collector):
    """The core's own numbers, read at each scrape. Its refusal reasons are a fixed set of sentences."""

    def __init__(self, snapshot: Callable[[], CoreMetrics]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        core = self._snapshot()
        yield _family(GaugeMetricFamily, "muster_gangs", "Gangs known, by state.", "state", core.gangs)
        yield _family(GaugeMetricFamily, "muster_reservations", "Reservations, by status.", "state", core.reservations)
        yield _family(CounterMetricFamily, "muster_filter_refusals", "Pods refused by filter.", "reason", core.refusals)
        yield _family(
            CounterMetricFamily,
            "muster_plan_changes",
            "Changes of a plan that was made: a slot moved or swapped, a gang planned anew, a promise broken.",
            "change",
            {
                "moved": core.moves,
                "swapped": core.swaps,
                "replanned": core.replans,
                "broken": core.broken_promises,
            },
        )
        yield CounterMetricFamily(
            "muster_gang_timeouts", "Rounds of held members that ended without the gang.", value=core.timeouts
        )
        yield CounterMetricFamily(
            "muster_overcommitted_by_others",
            "Pods bound past this extender onto a node without room for them: by another scheduler in the same moment.",
            value=core.overcommitted_by_others,
        )
        yield CounterMetricFamily("muster_gangs_evicted", "Gangs evicted whole.", value=core.evicted_gangs)
        yield GaugeMetricFamily("muster_held_bind_calls", "Bind calls held by the core.", value=core.held_calls)
        yield _family(
            GaugeMetricFamily,
            "muster_core_entries",
            "Entries of each map of the core: nothing per gang outlives the gang.",
            "map",
            core.sizes | {"slots": core.slots, "charges": core.charges},
        )


class Metrics:
    """Counters start at 0 for every known label set, so that a query finds them before the first event."""

    def __init__(self, *, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
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
        self.gang_assembly_seconds = Histogram(
            "muster_gang_assembly_seconds",
            "From the first member at the barrier to the last Binding.",
            buckets=_ASSEMBLY_BUCKETS,
            registry=registry,
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

    def watching(self, resource: str, last_event_age: Callable[[], float]) -> None:
        """Declares a watched resource."""
        self.watch_restarts.labels(resource)
        self.cache_last_event_age.labels(resource).set_function(last_event_age)

    def posted(self, outcome: Outcome, seconds: float) -> None:
        """One Binding came to an end."""
        self.binds.labels(BIND_RESULTS[outcome]).inc()
        if outcome is not Outcome.NOT_SENT:
            self.bind_seconds.observe(seconds)

    def exposition(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, int],
) -> Metric:
    family = kind(name, text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family
