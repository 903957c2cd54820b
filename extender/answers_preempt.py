"""What `preempt` answers: which of kube-scheduler's candidates may stay. An empty answer is a veto.

1. A member of a gang evicts nobody: its victims would die for a gang that may still not land.
2. Candidates where `filter` would refuse the pod even with the victims gone are dropped.
3. Candidates whose victims are gang members are dropped while another is left.
"""

from collections.abc import Mapping, Sequence

from extender.breaking import may_break
from extender.pod_facts import PodFacts
from extender.world import World
from kube.objects.resources import add_into, fits

Victims = Mapping[str, tuple[Sequence[str], int]]
"""node -> (victim pod UIDs, number of PDB violations); lists may be empty (k8s#135486)."""


def answer(world: World, facts: PodFacts | None, victims: Victims) -> dict[str, tuple[list[str], int]]:
    if facts is None:
        return {}
    if facts.native:
        return {node: (list(uids), violations) for node, (uids, violations) in victims.items()}
    if facts.identity is not None:
        return {}
    possible = {
        node: (list(uids), violations)
        for node, (uids, violations) in victims.items()
        if _fits_afterwards(world, facts, node, uids)
    }
    sparing = {node: entry for node, entry in possible.items() if not any(_in_gang(world, uid) for uid in entry[0])}
    return sparing or possible


def _fits_afterwards(world: World, facts: PodFacts, node: str, uids: Sequence[str]) -> bool:
    """Beside the promises that the pod may not break. A node that is not known here is kube-scheduler's business."""
    room = world.ledger.rooms.get(node)
    if room is None or room.node is None:
        return True
    if not facts.daemon and any(
        node in nodes and (claimant := world.gangs.get(key)) is not None and claimant.priority >= facts.priority
        for key, nodes in world.claims.items()
    ):
        return False
    if not room.slots:
        return True
    free = dict(room.free)
    for uid in uids:
        charge = room.charges.get(uid)
        if charge is not None:
            add_into(free, charge.request)
    for slot in room.slots.values():
        if slot.uid in uids or may_break(facts, slot):
            add_into(free, slot.pod_class.charge)
    return fits(facts.pod_class.charge, free)


def _in_gang(world: World, uid: str) -> bool:
    facts = world.pods.get(uid)
    return facts is not None and facts.identity is not None
