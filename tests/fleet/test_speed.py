"""What gangs cost: a small run of the benchmark (`make bench`), muster beside the stock scheduler, interleaved."""

from statistics import median

import pytest

from hack.bench import report
from hack.bench.rig import Rig
from hack.bench.runner import run_all
from hack.bench.scenario import Contender, Shape
from kube.objects.names import MUSTER_SCHEDULER

pytestmark = pytest.mark.long

FLOOR = 0.35
"""Of the stock scheduler's rate. Far below what is reached (docs/BENCH.md), so that a busy machine fails nothing; what
it would catch: a further write per pod, a timeout that a gang waits for, a connection per call."""
SHAPE = Shape(4, 100)
ROUNDS = 3


def test_gangs_are_bound_at_a_good_part_of_the_stock_rate(tmp_path):
    with Rig.running(tmp_path / "fleet", print) as rig:
        [result] = run_all(rig, (100,), (SHAPE,), ROUNDS, print)
    print(f"\n{report.table([result])}")
    muster = Contender(SHAPE.pods, SHAPE, MUSTER_SCHEDULER)
    ratio = report.ratio(result, muster)
    print(f"  {SHAPE} on 100 nodes: {ratio:.2f} of the stock scheduler's rate (floor {FLOOR}, goal 0.7)")
    # One Binding and one event for each pod, as stock does; the rest is per gang or per second.
    assert median(run.writes["POST pods/binding"] for run in result.runs[muster]) == SHAPE.pods
    per_pod = median(sum(run.writes.values()) for run in result.runs[muster]) / SHAPE.pods
    assert per_pod < 2.5
    assert ratio >= FLOOR
