"""Many waiting jobs, and random streams of them against a plain model."""

import time

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatcher.queueing import Pending, Waiting
from kube.objects.binding import ClusterReason
from tests.unit.dispatcher_objects import ROOT, A, B, a_ledger, a_waiting, an_ask, shape, two_leaves

NO = (ClusterReason(cluster="c1", message="largest fit 1 of 2 pods (nvidia.com/gpu)"),)


def test_f10_one_that_fits_is_found_at_once_behind_ten_thousand_that_do_not() -> None:
    """All unlike, half blocked by quota and half by room. The bound is generous: a scan takes many times as long."""
    ledger = a_ledger(two_leaves(a={"max": {"cpu": "10m"}}))
    queue = Pending()
    queue.room_reported("c1", [shape(100, gpu=1)])
    for n in range(5000):
        queue.put(a_waiting(f"quota{n}", an_ask(A, cpu=11 + n), priority=9, at=f"t{n:05}"))
        queue.put(a_waiting(f"room{n}", an_ask(B), gpu=2 + n, priority=9, at=f"t{n:05}"))
    while (job := queue.next(ledger)) is not None:
        queue.no_room(job.binding_id, {"c1": "nvidia.com/gpu"}, NO)
    assert len(queue) == 10_000

    started = time.perf_counter()
    for n in range(100):
        queue.put(a_waiting(f"fits{n}", an_ask(A, cpu=1), at=f"u{n:03}"))
        job = queue.next(ledger)
        assert job is not None
        assert job.name == f"fits{n}"
        queue.discard(job.binding_id)
        queue.quota_freed(ledger, A)
        queue.room_reported("c1", [shape(100, gpu=1)])
    spent = time.perf_counter() - started

    print(f"100 arrivals, releases and reports behind 10,000 blocked jobs: {spent * 10:.2f} ms each")
    assert spent < 5


class QueueFollowsAModel(RuleBasedStateMachine):
    """A queue of Priority policy admits, at each step, the first job by order that quota admits and that is not known
    to lack room since the last report that may help it."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = a_ledger(two_leaves(a={"max": {"cpu": "6m"}}, cpu=100))
        self.queue = Pending()
        self.waiting: dict[str, Waiting] = {}
        self.gpus = 0
        self.count = 0

    @rule(cpu=st.integers(0, 7), gpu=st.integers(1, 4), priority=st.integers(0, 2), leaf=st.sampled_from([A, B]))
    def submit(self, cpu: int, gpu: int, priority: int, leaf: tuple[str, ...]) -> None:
        self.count += 1
        job = a_waiting(f"j{self.count}", an_ask(leaf, cpu=cpu), gpu=gpu, priority=priority, at=f"t{self.count:04}")
        self.waiting[job.binding_id] = job
        self.queue.put(job)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), priority=st.integers(0, 2))
    def edit(self, data: st.DataObject, priority: int) -> None:
        old = self.waiting[data.draw(st.sampled_from(sorted(self.waiting)))]
        job = a_waiting(old.name, old.ask, priority=priority, at=old.queued_at, gpu=data.draw(st.integers(1, 4)))
        self.waiting[job.binding_id] = job
        self.queue.put(job)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[name]
        self.queue.discard(name)

    @precondition(lambda self: self.ledger.entries())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        entry = self.ledger.release(data.draw(st.sampled_from(sorted(self.ledger.entries()))))
        assert entry is not None
        self.queue.quota_freed(self.ledger, entry.home)

    @rule(gpus=st.integers(0, 4))
    def report(self, gpus: int) -> None:
        self.gpus = gpus
        self.queue.room_reported("c1", [shape(1, gpu=gpus)])

    def fits(self, job: Waiting) -> bool:
        assert job.ask
        return self.ledger.blocked(job.ask) is None and int(job.components[0].request["nvidia.com/gpu"]) <= self.gpus

    @rule()
    def decide(self) -> None:
        while (job := self.queue.next(self.ledger)) is not None:
            assert job == self.waiting[job.binding_id]
            if not self.fits(job):
                self.queue.no_room(job.binding_id, {"c1": "nvidia.com/gpu"}, NO)
                continue
            better = [o for o in self.waiting.values() if o.sort_key < job.sort_key and self.fits(o)]
            assert not better
            assert job.ask
            self.ledger.charge(job.binding_id, job.ask)
            self.queue.discard(job.binding_id)
            del self.waiting[job.binding_id]
        assert not [job for job in self.waiting.values() if self.fits(job)]

    @invariant()
    def all_jobs_are_there_in_order(self) -> None:
        assert len(self.queue) == len(self.waiting)
        for leaf in (A, B):
            jobs = sorted((j for j in self.waiting.values() if j.queue == leaf), key=lambda job: job.sort_key)
            assert self.queue.positions(leaf) == jobs
        assert self.queue.positions(ROOT) == []


QueueFollowsAModel.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestQueueFollowsAModel = QueueFollowsAModel.TestCase
