"""Why a gang does not fit, in numbers: "largest fit 7 of 9 pods: 2 short of nvidia.com/gpu"."""

from collections.abc import Sequence
from dataclasses import dataclass

from extender.board import Board
from extender.plan_question import Demand, Question
from kube.objects.node_predicates import PORTS_TAKEN, constraint_violation
from kube.objects.pod_class import PodClass
from kube.objects.resources import fits, shortage

NO_NODES = "no node is ready"


@dataclass(frozen=True, slots=True)
class Shortfall:
    fits: int
    """Pods of the largest fit found."""
    wanted: int
    short: tuple[tuple[str, int], ...]
    """What is missing -> number of pods that miss it; most first."""

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.short)
        return f"largest fit {self.fits} of {self.wanted} pods" + (f": {reasons}" if reasons else "")


def shortfall_of(question: Question, board: Board, placed: Sequence[int]) -> Shortfall:
    """`placed`: pods per demand that are on the board now."""
    short: dict[str, int] = {}
    for demand, count in zip(question.demands, placed, strict=True):
        if count < demand.wanted:
            reason = _missing(demand, board)
            short[reason] = short.get(reason, 0) + demand.wanted - count
    ranked = tuple(sorted(short.items(), key=lambda item: (-item[1], item[0])))
    return Shortfall(sum(placed), question.wanted, ranked)


def _missing(demand: Demand, board: Board) -> str:
    """What one more pod misses on most nodes."""
    pod_class = demand.pod_class
    rooms = board.rooms(pod_class, demand.avoid, None)
    if not rooms:
        return _refused(pod_class, board)
    reasons: dict[str, int] = {}
    for room in rooms:
        free = board.free(room)
        if not fits(pod_class.charge, free):
            for name in shortage(pod_class.charge, free):
                reasons[name] = reasons.get(name, 0) + 1
        else:
            reason = board.forbidden(room, pod_class) or PORTS_TAKEN
            reasons[f"blocked: {reason}"] = reasons.get(f"blocked: {reason}", 0) + 1
    worst = min(reasons, key=lambda name: (-reasons[name], "/" not in name, name))
    return worst if worst.startswith("blocked: ") else f"short of {worst}"


def _refused(pod_class: PodClass, board: Board) -> str:
    reasons: dict[str, int] = {}
    for view in board.nodes():
        reason = constraint_violation(pod_class.constraints, view) or "nodes were not offered by kube-scheduler"
        reasons[reason] = reasons.get(reason, 0) + 1
    if not reasons:
        return f"blocked: {NO_NODES}"
    return "blocked: " + min(reasons, key=lambda reason: (-reasons[reason], reason))
