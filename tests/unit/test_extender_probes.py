"""/healthz, /readyz and /metrics."""

from contextlib import asynccontextmanager

import aiohttp

from extender.core import Metrics as CoreMetrics
from extender.metrics import CoreCollector, Metrics
from extender.probes import ProbeServer

DOCUMENTED = {
    "muster_extender_requests_total",
    "muster_extender_request_duration_seconds",
    "muster_extender_requests_in_flight",
    "muster_gangs",
    "muster_gangs_evicted_total",
    "muster_reservations",
    "muster_filter_refusals_total",
    "muster_plan_changes_total",
    "muster_held_bind_calls",
    "muster_core_entries",
    "muster_gang_assembly_seconds",
    "muster_overcommitted_by_others_total",
    "muster_gang_timeouts_total",
    "muster_binds_total",
    "muster_bind_duration_seconds",
    "muster_watch_restarts_total",
    "muster_cache_last_event_age_seconds",
    "muster_leader",
    "muster_build_info",
}
LABELS = {"verb", "code", "state", "result", "reason", "change", "map", "resource", "version", "python"}
"""Never job, pod, uid or node: nothing per gang outlives it."""


def core_metrics():
    return CoreMetrics(
        gangs={"landed": 3, "planned": 0},
        reservations={"Reserved": 1},
        held_calls=2,
        slots=4,
        charges=5,
        refusals={"no room": 6},
        moves=7,
        swaps=8,
        replans=9,
        broken_promises=10,
        evicted_gangs=11,
        timeouts=12,
        sizes={"pods": 13},
    )


@asynccontextmanager
async def probing(reasons, metrics):
    server = ProbeServer(lambda: reasons, metrics.exposition)
    port = await server.start("127.0.0.1", 0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        try:
            yield session
        finally:
            await server.stop()


async def get(session, path):
    async with session.get(path) as reply:
        return reply.status, await reply.text()


async def test_ready_only_when_nothing_stands_against_it():
    reasons = ["cache not complete: pods", "the scheduler does not lead"]
    async with probing(reasons, Metrics(version="1")) as session:
        status, text = await get(session, "/readyz")
        assert status == 503
        assert text.splitlines() == [f"not ready: {reason}" for reason in reasons]
        assert (await get(session, "/healthz"))[0] == 200, "waiting is no reason to be restarted"
        reasons.clear()
        assert (await get(session, "/readyz"))[0] == 200


async def test_other_paths_and_methods():
    async with probing([], Metrics(version="1")) as session:
        assert (await get(session, "/filter"))[0] == 404
        async with session.post("/metrics") as reply:
            assert reply.status == 405


async def test_the_exported_set_is_the_documented_set():
    metrics = Metrics(version="1.2.3")
    metrics.watching("pods", lambda: 1.5)
    metrics.registry.register(CoreCollector(core_metrics))
    async with probing([], metrics) as session:
        status, text = await get(session, "/metrics")
    assert status == 200
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert families == DOCUMENTED
    assert 'version="1.2.3"' in text
    assert 'muster_cache_last_event_age_seconds{resource="pods"} 1.5' in text
    labels = {label for family in metrics.registry.collect() for sample in family.samples for label in sample.labels}
    assert labels - {"le"} <= LABELS


def test_the_numbers_of_the_core_are_read_at_each_scrape():
    metrics = Metrics(version="1")
    metrics.registry.register(CoreCollector(core_metrics))
    text = metrics.exposition().decode()
    for sample in (
        'muster_gangs{state="landed"} 3.0',
        'muster_gangs{state="planned"} 0.0',
        'muster_reservations{state="Reserved"} 1.0',
        'muster_filter_refusals_total{reason="no room"} 6.0',
        'muster_plan_changes_total{change="swapped"} 8.0',
        "muster_gangs_evicted_total 11.0",
        "muster_gang_timeouts_total 12.0",
        "muster_held_bind_calls 2.0",
        'muster_core_entries{map="charges"} 5.0',
        'muster_core_entries{map="pods"} 13.0',
    ):
        assert sample in text.splitlines()


def test_counters_are_there_before_their_first_event():
    text = Metrics(version="1").exposition().decode()
    for verb in ("filter", "preempt", "bind"):
        assert f'muster_extender_requests_total{{code="200",verb="{verb}"}} 0.0' in text
    assert 'muster_binds_total{result="not_sent"} 0.0' in text
