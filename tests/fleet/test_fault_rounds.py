"""Extender and scheduler killed, stopped and cut off at random moments under load: gangs stay whole, nodes hold."""

import random

import pytest

from hack.fleet.fleet import Cluster, Fleet
from hack.fleet.spec import NodeShape
from tests.fleet.conftest import SetNodes
from tests.fleet.fault_rounds import ONE_PAIR, Round

NODES, CPUS = 30, 8
SHORT = 2
LONG = 50


@pytest.mark.parametrize(
    "seed",
    [*range(SHORT), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(SHORT, SHORT + LONG))],
)
def test_forty_gangs_under_faults(
    fleet: Fleet, member1: Cluster, namespace: str, member_nodes: SetNodes, seed: int
) -> None:
    """After settling no gang is partial and all have landed, each pod bound once; the audit log, played again, shows no
    moment at which a node had given more than it has. About every second gang has to wait for the room of another."""
    names = member_nodes(member1=[NodeShape(count=NODES, cpu=str(CPUS), gpus=0)])["member1"]
    print(f"\n  seed {seed}")
    played = Round(fleet, member1, namespace, random.Random(seed), ONE_PAIR, long=seed >= SHORT)
    played.run()
    played.judge(dict.fromkeys(names, CPUS))
