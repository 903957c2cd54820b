"""A14, invariant 8: ten thousand gangs of every fate come and go, and nothing of them stays."""

import gc
from collections.abc import Callable
from pathlib import Path

from extender.config import CoreConfig
from extender.effects import Outcome
from extender.metrics import CoreCollector, Metrics
from kube.objects.pods import Pod
from tests.unit.extender_objects import hub_pod, member, node, pod, pod_group, reservation
from tests.unit.extender_stage import Stage

GANGS = 10_000
MEBIBYTE = 1 << 20


class Life:
    """A member cluster in which gangs live and die; each method is one fate, and cleans up like the API would."""

    def __init__(self) -> None:
        config = CoreConfig(takeover_grace=0.0, heal_limit=5.0, claim_after=2.0, claim_limit=4.0, claim_pause=1.0)
        self.stage = Stage(config).add(node("a", cpu=8), node("b", cpu=8)).start()

    def lands(self, name: str) -> None:
        pods = self._gang(name, 2)
        for each in pods:
            self.stage.schedule(each)
        self.stage.finish(pods[0])
        self._gone(name, pods)

    def never_fits(self, name: str) -> None:
        pods = self._gang(name, 3, cpu="8")
        for each in pods:
            self.stage.schedule(each)
        self.stage.pass_time(3)  # it claims nodes in vain
        self._gone(name, pods)

    def never_complete(self, name: str) -> None:
        pods = self._gang(name, 2, minimum=3)
        for each in pods:
            self.stage.schedule(each)
        self.stage.pass_time(6)
        self._gone(name, pods)

    def evicted_half_bound(self, name: str) -> None:
        pods = self._gang(name, 2)
        self.stage.refuse_posts[pods[1].metadata.uid] = [Outcome.REJECTED] * 50
        for each in pods:
            self.stage.schedule(each)
        self.stage.pass_time(6)
        assert pods[0].metadata.name in self.stage.evicted
        self._gone(name, pods)

    def in_doubt(self, name: str) -> None:
        each = pod(name, cpu="1")
        self.stage.refuse_posts[each.metadata.uid] = [Outcome.UNKNOWN] * 50
        self.stage.add(each)
        self.stage.schedule(each)
        self._gone(name, [each])

    def of_the_hub(self, name: str) -> None:
        wanted = reservation(name, state="Dispatched")
        self.stage.add(wanted, pod_group(name, 3))
        pods = [hub_pod(name, "master"), hub_pod(name, "worker", 0), hub_pod(name, "worker", 1)]
        self.stage.add(*pods)
        for each in pods:
            self.stage.schedule(each)
        self._hub_gone(name)
        self._gone(name, pods)

    def reserved_in_vain(self, name: str) -> None:
        self.stage.add(reservation(name))
        self.stage.pass_time(0.5)
        self._hub_gone(name)

    def refused(self, name: str) -> None:
        self.stage.add(reservation(name, roles=[{"name": "w", "count": 99, "minCount": 99, "template": TEMPLATE}]))
        self._hub_gone(name)

    @property
    def fates(self) -> list[Callable[[str], None]]:
        return [
            self.lands,
            self.of_the_hub,
            self.in_doubt,
            self.lands,
            self.reserved_in_vain,
            self.refused,
            self.lands,
            self.of_the_hub,
            self.never_complete,
            self.never_fits,
            self.evicted_half_bound,
        ]

    def _gang(self, name: str, size: int, *, minimum: int = 0, cpu: str = "1") -> list[Pod]:
        pods = [member(f"{name}-{i}", name, cpu=cpu) for i in range(size)]
        self.stage.add(pod_group(name, minimum or size), *pods)
        return pods

    def _hub_gone(self, name: str) -> None:
        self.stage.reservations.pop(f"id-{name}-1", None)
        self.stage.perform(self.stage.core.reservation_deleted("muster-system", f"id-{name}-1", self.stage.now))

    def _gone(self, name: str, pods: list[Pod]) -> None:
        stage = self.stage
        for each in pods:
            stage.delete(each)
        if stage.groups.pop(("default", name), None) is not None:
            stage.perform(stage.core.pod_group_deleted("default", name, stage.now))
        for notes in (stage.effects, stage.calls, stage.answers, stage.posts, stage.evicted, stage.events, stage.woken):
            notes.clear()
        stage.refuse_posts.clear()


TEMPLATE = {"metadata": {}, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}


def series(life: Life) -> int:
    """Lines of /metrics that are samples."""
    exported = Metrics(version="test")
    exported.registry.register(CoreCollector(life.stage.core.metrics))
    return sum(1 for line in exported.exposition().decode().splitlines() if not line.startswith("#"))


def resident() -> int:
    """Bytes of this process."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def test_a14_ten_thousand_gangs_of_every_fate_leave_nothing_behind() -> None:
    """Map sizes, series count and RSS are back at what they were; RSS from the time when every fate has been seen."""
    life = Life()
    before = life.stage.core.metrics()
    fates = life.fates
    after_warm_up = series_after_warm_up = 0
    for number in range(GANGS):
        fates[number % len(fates)](f"g{number}")
        if number == GANGS // 5:
            life.stage.pass_time(200)
            after_warm_up, series_after_warm_up = resident(), series(life)
    life.stage.pass_time(200)

    after = life.stage.core.metrics()
    assert after.sizes == before.sizes
    assert (after.gangs, after.reservations) == (before.gangs, before.reservations)
    assert series(life) == series_after_warm_up
    grown = resident() - after_warm_up
    print(f"\n  RSS after {GANGS} gangs: {grown / MEBIBYTE:+.1f} MiB since the {GANGS // 5}th")
    assert grown < 8 * MEBIBYTE
    world = life.stage.core._world
    assert len(world.timers) == 0
    assert len(world.timers._heap) < 1000
    assert world.ledger.kept_nodes == {}
    assert len(world.eligible) <= 256
