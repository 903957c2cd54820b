"""Two kube-schedulers elect one of them, each with an extender beside it: whoever fails, no gang is lost or torn."""

import contextlib
import json
import random
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from hack.fleet.fleet import Cluster, Fleet, Process, wait_for
from hack.fleet.spec import MemberSpec, NodeShape
from tests.fleet.answers import Answers
from tests.fleet.conftest import DEFAULT_NODES, SetNodes, lone_member
from tests.fleet.fault_rounds import TWO_PAIRS, Round
from tests.fleet.replay import bindings, cpus_of, overcommits
from tests.fleet.stories import (
    GENEROUS,
    Json,
    assert_bound_once,
    bindings_posted,
    bound,
    gang_pod,
    plain_pod,
    pod_group,
    pods,
    posting,
    read,
)

pytestmark = pytest.mark.long

GOAL = "goal 15 s"
NODES, CPUS = 8, 4
LONG = 10
EXTENDERS = ("extender", "extender-2")
SCHEDULER_OF = {"extender": "kube-scheduler", "extender-2": "kube-scheduler-2"}


@pytest.fixture(scope="module")
def whole_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """In the place of the ordinary one: a member with two pairs."""
    member = MemberSpec("member1", operator="none", nodes=(DEFAULT_NODES,), standby=True)
    with lone_member(tmp_path_factory.mktemp("standby"), member) as fleet:
        yield fleet


def ready(member: Cluster) -> list[str]:
    """The extenders whose /readyz says yes."""
    found = []
    for extender in EXTENDERS:
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{member.port(f'{extender} metrics')}/readyz"
            with urllib.request.urlopen(url, timeout=1):
                found.append(extender)
    return found


def leader(member: Cluster) -> str:
    """The one extender that is ready."""
    found: str = wait_for("an extender ready", lambda: "".join(ready(member)[:1]), GENEROUS)
    return found


def other(extender: str) -> str:
    return EXTENDERS[1 - EXTENDERS.index(extender)]


def held(member: Cluster, extender: str) -> int:
    """muster_held_bind_calls."""
    url = f"http://127.0.0.1:{member.port(f'{extender} metrics')}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("muster_held_bind_calls "):
                return int(float(line.rpartition(" ")[2]))
    return 0


class Stage:
    """Gangs at the barrier, and the record of what became of them."""

    def __init__(self, member: Cluster, namespace: str, post: Callable[[Json], Json]) -> None:
        self.member, self.namespace = member, namespace
        self.since = member.audit_mark()
        self.posted: list[Json] = []
        self.gangs: dict[str, int] = {}
        self._post = post

    def gang(self, name: str, size: int, *, without: int = 0, cpu: str = "3") -> None:
        """Posts a gang, without its last members. Half of its pods go through each profile."""
        self.gangs[name] = size
        self._post(pod_group(self.namespace, name, size))
        for index in range(size - without):
            self.member_of(name, index, cpu=cpu)

    def member_of(self, name: str, index: int, *, cpu: str = "3") -> None:
        profile = ("default-scheduler", "muster")[len(self.gangs) % 2]
        self.posted.append(self._post(gang_pod(self.namespace, name, index, cpu=cpu, schedulerName=profile)))

    def plain(self, name: str) -> None:
        self.posted.append(self._post(plain_pod(self.namespace, name, cpu="1")))

    def wait_all_bound(self, timeout: float = GENEROUS) -> None:
        count = len(self.posted)
        try:
            wait_for(f"{count} pods bound", lambda: len(bound(self.member, self.namespace)) == count, timeout)
        except AssertionError as error:
            waiting = [p for p in pods(self.member, self.namespace) if not p["spec"].get("nodeName")]
            error.add_note(json.dumps([(p["metadata"]["name"], p["status"]) for p in waiting], indent=1)[:4000])
            raise

    def judge(self) -> None:
        """Each pod was bound once, by the extenders; no node ever had too much; nobody was evicted."""
        every = [e for e in self.member.audit_events(self.since) if e.namespace == self.namespace]
        events = bindings(every)
        assert_bound_once(events)
        assert sorted(e.name for e in events) == sorted(p["metadata"]["name"] for p in self.posted)
        sizes = {n["metadata"]["name"]: CPUS for n in self.member.get("/api/v1/nodes")["items"]}
        assert overcommits(every, cpus_of(self.posted), sizes) == []
        assert [e for e in every if e.subresource == "eviction"] == []


@pytest.fixture
def stage(member1: Cluster, namespace: str, member_nodes: SetNodes) -> Iterator[Stage]:
    member_nodes(member1=[NodeShape(count=NODES, cpu=str(CPUS), gpus=0)])
    leader(member1)
    with posting(member1) as post:
        yield Stage(member1, namespace, post)


def at_the_barrier(stage: Stage) -> str:
    """Two gangs of four on eight nodes, each without its last member. Returns the leading extender."""
    deciding = leader(stage.member)
    stage.gang("left", 4, without=1)
    stage.gang("right", 4, without=1)
    wait_for("six held bind calls", lambda: held(stage.member, deciding) == 6, GENEROUS)
    return deciding


def complete(stage: Stage) -> None:
    """The last members, and a plain pod that fits beside the gangs."""
    stage.member_of("left", 3)
    stage.member_of("right", 3)
    stage.plain("plain")


def tell(stage: Stage, answers: Answers, what: str, by: str, since: float, wall: float) -> None:
    """Prints how long it took until `by` decided, and until the last Binding."""
    decided = answers.first_positive(by, since) - since
    last = max(e.completed for e in bindings_posted(stage.member, stage.namespace, stage.since))
    landed = datetime.fromisoformat(last).timestamp() - wall
    print(f"\n  {what}: {by} decides after {decided:.1f} s, last Binding after {landed:.1f} s ({GOAL})")


def test_exactly_one_extender_decides_and_the_other_says_why_not(member1: Cluster, stage: Stage) -> None:
    deciding = leader(member1)
    with Answers(member1) as answers:
        stage.gang("whole", 3)
        stage.wait_all_bound()
        wait_for("both were asked", lambda: all(len(answers.of(e)) >= 20 for e in EXTENDERS), GENEROUS)
    assert all(answer.positive for answer in answers.of(deciding))
    assert not any(answer.positive for answer in answers.of(other(deciding)))
    assert ready(member1) == [deciding]
    url = f"http://127.0.0.1:{member1.port(f'{other(deciding)} metrics')}/readyz"
    with pytest.raises(urllib.error.HTTPError) as why:
        urllib.request.urlopen(url, timeout=5)
    host = f"member1-control-plane-{EXTENDERS.index(other(deciding)) + 1}_"
    assert f"the scheduler '{host}' does not hold its lease" in why.value.read().decode()
    stage.judge()


def test_the_leading_scheduler_killed_with_gangs_at_the_barrier(fleet: Fleet, member1: Cluster, stage: Stage) -> None:
    """The other pair takes over, and the killed one comes back as the standby."""
    former = at_the_barrier(stage)
    scheduler = fleet.processes[f"member1/{SCHEDULER_OF[former]}"]
    with Answers(member1) as answers:
        killed, wall = time.monotonic(), time.time()
        scheduler.kill()
        complete(stage)
        stage.wait_all_bound()
        tell(stage, answers, "leading scheduler killed", other(former), killed, wall)
        assert ready(member1) == [other(former)]
        scheduler.start()
        stage.gang("afterwards", 3, cpu="1")
        stage.wait_all_bound()
    assert ready(member1) == [other(former)]
    assert answers.together() == []
    stage.judge()


def test_the_leading_extender_killed_with_gangs_at_the_barrier(fleet: Fleet, member1: Cluster, stage: Stage) -> None:
    """Its scheduler goes on leading, so nobody can stand in for it: it comes back, as by its kubelet."""
    former = at_the_barrier(stage)
    extender = fleet.processes[f"member1/{former}"]
    with Answers(member1) as answers:
        killed, wall = time.monotonic(), time.time()
        extender.kill()
        complete(stage)
        extender.start()
        stage.wait_all_bound()
    assert ready(member1) == [former]
    assert not any(answer.positive for answer in answers.of(other(former)))
    tell(stage, answers, "leading extender killed and started", former, killed, wall)
    stage.judge()


@contextlib.contextmanager
def stopped(process: Process) -> Iterator[None]:
    process.stop()
    try:
        yield
    finally:
        process.cont()


def test_the_leading_scheduler_stopped_longer_than_its_lease_and_continued(
    fleet: Fleet, member1: Cluster, stage: Stage
) -> None:
    """While it sleeps the other pair lands the gangs; awake again it finds its Lease gone and stands in line."""
    former = at_the_barrier(stage)
    scheduler = fleet.processes[f"member1/{SCHEDULER_OF[former]}"]
    with Answers(member1) as answers:
        since, wall = time.monotonic(), time.time()
        with stopped(scheduler):
            complete(stage)
            stage.wait_all_bound()
            tell(stage, answers, "leading scheduler stopped", other(former), since, wall)
            assert ready(member1) == [other(former)]
        stage.gang("afterwards", 3, cpu="1")
        stage.wait_all_bound()
        scheduler.wait_ready()
    assert ready(member1) == [other(former)]
    assert answers.together() == []
    stage.judge()


def test_the_leading_extender_stopped_longer_than_its_lease_and_continued(
    fleet: Fleet, member1: Cluster, stage: Stage
) -> None:
    """Its scheduler leads on without it: nothing is decided by anybody until it wakes, and nothing stale after."""
    former = at_the_barrier(stage)
    extender = fleet.processes[f"member1/{former}"]
    with Answers(member1) as answers:
        with stopped(extender):
            since = time.monotonic()
            complete(stage)
            wait_for(
                "its Lease run out",
                lambda: extender_lease_age(member1) > 16,
                GENEROUS,
            )
            assert ready(member1) == []
            assert bound(member1, stage.namespace) == []
        woken, wall = time.monotonic(), time.time()
        stage.wait_all_bound()
    assert ready(member1) == [former]
    assert answers.together() == []
    assert not any(answer.positive for answer in answers.of(other(former)) if answer.sent > since)
    tell(stage, answers, "leading extender woken", former, woken, wall)
    stage.judge()


def extender_lease_age(member: Cluster) -> float:
    """Seconds since the extender's own Lease was renewed; its duration is 15 s."""
    lease = read(member, "/apis/coordination.k8s.io/v1/namespaces/muster-system/leases/muster-extender")
    assert lease is not None
    return time.time() - datetime.fromisoformat(lease["spec"]["renewTime"]).timestamp()


def test_a_rolling_restart_of_both_pairs_costs_retries_only(fleet: Fleet, member1: Cluster, stage: Stage) -> None:
    """As in an upgrade: node after node, scheduler and extender, while gangs keep coming."""
    order = random.Random(7)
    print("\n  seed 7")
    first = leader(member1)
    with Answers(member1) as answers:
        number = 0
        for extender in (other(first), first):
            for name in (SCHEDULER_OF[extender], extender):
                for _ in range(2):
                    stage.gang(f"gang{number}", order.randint(2, 4), cpu="1")
                    number += 1
                began = time.monotonic()
                fleet.processes[f"member1/{name}"].restart()
                wait_for("somebody decides", lambda: ready(member1), GENEROUS)
                print(f"\n  {name} restarted, somebody decides after {time.monotonic() - began:.1f} s")
        stage.wait_all_bound()
    assert answers.together() == []
    stage.judge()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(LONG))
def test_forty_gangs_while_both_pairs_are_mistreated(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes, seed: int
) -> None:
    """As in test_fault_rounds, with a standby that takes over at random moments and is mistreated itself."""
    names = member_nodes(member1=[NodeShape(count=30, cpu="8", gpus=0)])["member1"]
    print(f"\n  seed {seed}")
    played = Round(fleet, member1, namespace, random.Random(seed), TWO_PAIRS, long=True)
    with Answers(member1) as answers:
        played.run()
    assert answers.together() == []
    played.judge(dict.fromkeys(names, 8))
