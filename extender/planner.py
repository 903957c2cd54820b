"""Places for all missing members of a gang at once, or the largest fit in numbers. Pure; nothing is kept.

By pod class, not by pod: nodes are counted per class, the hardest class goes first, and each class fills the nodes
that are tightest for it, so that whole devices and whole nodes stay free for the next gang. A greedy order that does
not work out is followed by others and, within a bounded number of steps, by an exact search (`plan_search`).
A class that topology rules couple is placed pod by pod.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import product

from extender.board import Board
from extender.eligible import Eligible
from extender.ledger import Ledger, Room
from extender.plan_question import Question
from extender.plan_search import search
from extender.shortfall import Shortfall, shortfall_of
from kube.objects.pod_class import PodClass

LARGE = 200
"""A gang of more pods is tried in fewer ways."""
MAX_DOMAINS = 16
"""Domains of a topology key that are tried one by one."""


Places = list[tuple[int, str, int]]
"""(index of the demand, node, number of pods)."""


@dataclass(frozen=True, slots=True)
class Plan:
    places: Places


def plan(question: Question, ledger: Ledger, eligible: Eligible) -> Plan | Shortfall:
    """Every member wanted if that fits, else as many as fit, at least the minimum; else the shortfall."""
    board = Board(ledger, eligible, free=question.free, classes=[demand.pod_class for demand in question.demands])
    try:
        for within in _domains(question, board):
            attempt = _Attempt(question, board, within)
            if attempt.hopeless:
                continue
            if attempt.place_all() or attempt.place_minimum():
                return Plan(attempt.places())
            board.rollback()
        return shortfall_of(question, board, _largest_fit(question, board))
    finally:
        board.rollback()


def fits_placed(question: Question, places: Places, ledger: Ledger, eligible: Eligible) -> bool:
    """Whether exactly these places work now (a reservation's recorded placement after a restart)."""
    board = Board(ledger, eligible, free=question.free, classes=[demand.pod_class for demand in question.demands])
    try:
        for index, node, count in places:
            demand = question.demands[index]
            rooms = board.rooms(demand.pod_class, demand.avoid, {node})
            if not rooms or board.count(rooms[0], demand.pod_class) < count:
                return False
            for _ in range(count):
                if board.one_by_one(demand.pod_class) and board.forbidden(rooms[0], demand.pod_class) is not None:
                    return False
                board.take(rooms[0], demand.pod_class, 1)
        return True
    finally:
        board.rollback()


class _Attempt:
    """One question on one set of nodes."""

    def __init__(self, question: Question, board: Board, within: Collection[str] | None) -> None:
        self.board = board
        self.demands = question.demands
        self.question = question
        self.within = within
        self.rooms = [board.rooms(demand.pod_class, demand.avoid, within) for demand in self.demands]
        self.supply = [
            _supply(board, demand.pod_class, rooms, demand.wanted)
            for demand, rooms in zip(self.demands, self.rooms, strict=True)
        ]
        self.marks: list[tuple[int, int, int]] = []
        """(index of the demand, first take, last take + 1) on the board."""

    @property
    def hopeless(self) -> bool:
        """Even one class alone does not fit, or all of them side by side fall short of the minimum."""
        return (
            any(supply < demand.required for supply, demand in zip(self.supply, self.demands, strict=True))
            or sum(self.supply) < self.question.min_total
        )

    def place_all(self) -> bool:
        if any(supply < demand.wanted for supply, demand in zip(self.supply, self.demands, strict=True)):
            return False
        return self._place([demand.wanted for demand in self.demands])

    def place_minimum(self) -> bool:
        """The required of each, then as many more as fit, in the order of hardness."""
        if all(demand.required == demand.wanted for demand in self.demands):
            return False  # that was tried
        if not self._place([demand.required for demand in self.demands]):
            return False
        placed = sum(demand.required for demand in self.demands)
        base = self.board.mark()
        base_marks = list(self.marks)
        best: tuple[int, tuple[int, ...]] = (-1, ())
        for order in self.orders():
            total = placed + self._extras(order)
            if total > best[0]:
                best = (total, order)
            if total == self.question.wanted:
                return True
            self.board.rollback(base)
            self.marks = list(base_marks)
        if best[0] < self.question.min_total:
            return False
        self._extras(best[1])
        return True

    def places(self) -> Places:
        return [
            (index, room.name, count)
            for index, start, end in self.marks
            for room, _class, count in self.board.taken(0)[start:end]
        ]

    def _place(self, counts: list[int]) -> bool:
        mark = self.board.mark()
        for order, packing in self._tries():
            self.marks = []
            if all(self.take(index, counts[index], packing) == counts[index] for index in order):
                return True
            self.board.rollback(mark)
        found = search(self.board, list(zip([d.pod_class for d in self.demands], self.rooms, counts, strict=True)))
        if found is None:
            return False
        self.marks = []
        for index, room, count in found:
            start = self.board.mark()
            self.board.take(room, self.demands[index].pod_class, count)
            self.marks.append((index, start, start + 1))
        return True

    def _extras(self, order: tuple[int, ...]) -> int:
        placed = 0
        for index in order:
            more = self.demands[index].wanted - self.demands[index].required
            if more:
                placed += self.take(index, more, PACKINGS[0])
        return placed

    def take(self, index: int, need: int, packing: "Packing") -> int:
        start = self.board.mark()
        others = [demand.pod_class for other, demand in enumerate(self.demands) if other != index]
        placed = take(self.board, self.demands[index].pod_class, self.rooms[index], need, packing, others)
        self.marks.append((index, start, self.board.mark()))
        return placed

    def _tries(self) -> Iterator[tuple[tuple[int, ...], "Packing"]]:
        """Orders of the classes with ways to pack them; few for a large gang, which hardly ever fits one way only."""
        orders = list(self.orders())
        if len(orders) == 1:
            yield orders[0], PACKINGS[0]
        elif self.question.wanted > LARGE:
            yield from ((orders[0], PACKINGS[0]), (orders[0], PACKINGS[1]), (orders[1], PACKINGS[0]))
        else:
            yield from product(orders, PACKINGS)

    def orders(self) -> Iterator[tuple[int, ...]]:
        """Hardest first: least supply for its demand, then the largest request; then the other way round."""
        hardest = tuple(
            sorted(
                range(len(self.demands)),
                key=lambda i: (
                    self.supply[i] / max(1, self.demands[i].wanted),
                    len(self.rooms[i]),
                    -_size(self.demands[i].pod_class),
                    i,
                ),
            )
        )
        yield hardest
        if len(hardest) > 1:
            largest = tuple(sorted(hardest, key=lambda i: -_size(self.demands[i].pod_class)))
            if largest != hardest:
                yield largest
            if hardest[::-1] not in (hardest, largest):
                yield hardest[::-1]


Packing = Callable[[Board, PodClass, Room, int, list[PodClass]], tuple[float, ...]]
"""Sort key of a node that takes `count` pods of the class; smaller goes first."""


def _tight(board: Board, pod_class: PodClass, room: Room, count: int, _others: list[PodClass]) -> tuple[float, ...]:
    """Leaves devices to those who ask for them, then whole devices and whole nodes: the tightest node first."""
    return (_wasted_devices(board, pod_class, room), count)


def _sparing(board: Board, pod_class: PodClass, room: Room, count: int, others: list[PodClass]) -> tuple[float, ...]:
    """Nodes that the fewest other classes of the gang could use."""
    usable = sum(1 for other in others if board.count(room, other))
    return (usable, _wasted_devices(board, pod_class, room), count)


def _roomy(board: Board, pod_class: PodClass, room: Room, count: int, _others: list[PodClass]) -> tuple[float, ...]:
    """As few nodes as possible."""
    return (_wasted_devices(board, pod_class, room), -count)


PACKINGS: tuple[Packing, ...] = (_tight, _sparing, _roomy)


def take(
    board: Board, pod_class: PodClass, rooms: list[Room], need: int, packing: Packing, others: list[PodClass]
) -> int:
    """Put up to `need` pods of the class on the board; how many found a place."""
    if need <= 0:
        return 0
    counted = []
    for group in board.groups(pod_class, rooms):
        count = board.count(group[0], pod_class)
        if count:
            counted.append((packing(board, pod_class, group[0], count, others), group[0].name, group, count))
    counted.sort(key=lambda entry: entry[:2])
    if board.one_by_one(pod_class):
        return _take_one_by_one(board, pod_class, [(group[0], count) for _, _, group, count in counted], need)
    left = need
    for _, _, group, count in counted:
        for room in group:
            taken = min(left, count)
            board.take(room, pod_class, taken)
            left -= taken
            if not left:
                return need
    return need - left


def _take_one_by_one(board: Board, pod_class: PodClass, rooms: list[tuple[Room, int]], need: int) -> int:
    left = need
    open_rooms = rooms
    while left:
        for position, (room, count) in enumerate(open_rooms):
            if board.forbidden(room, pod_class) is None:
                board.take(room, pod_class, 1)
                left -= 1
                if count > 1:
                    open_rooms[position] = (room, count - 1)
                else:
                    del open_rooms[position]
                break
        else:
            break
    return need - left


def _supply(board: Board, pod_class: PodClass, rooms: list[Room], wanted: int) -> int:
    """How many pods of the class alone fit, counted up to a few times what is wanted."""
    enough = 8 * wanted
    total = 0
    for group in board.groups(pod_class, rooms):
        total += board.count(group[0], pod_class) * len(group)
        if total >= enough:
            break
    return total


def _largest_fit(question: Question, board: Board) -> list[int]:
    """Pods placed per demand in the best greedy order; the board is left with them. For the message only, so a large
    gang is tried in one order."""
    areas: list[Collection[str] | None] = [None]
    for key in _together(question):
        areas += reversed(_by_domain(question, board, key, 1))
    attempts = [_Attempt(question, board, within) for within in areas]
    tries = [(attempt, order) for attempt in attempts for order in attempt.orders()]
    if question.wanted > LARGE:
        tries = tries[:1]
    best: list[int] = []
    last = chosen = tries[0]
    for last in tries:
        counts = _counts(question, board, *last)
        if sum(counts) > sum(best) or not best:
            best, chosen = counts, last
    if chosen is not last:
        _counts(question, board, *chosen)
    return best


def _counts(question: Question, board: Board, attempt: _Attempt, order: tuple[int, ...]) -> list[int]:
    """Pods placed per demand in this order on the empty board."""
    board.rollback()
    counts = [0] * len(question.demands)
    for index in order:
        counts[index] = attempt.take(index, question.demands[index].wanted, PACKINGS[0])
    return counts


def _domains(question: Question, board: Board) -> Iterator[Collection[str] | None]:
    """Sets of nodes to try: each domain of the preferred key, tightest first; all nodes; and, where members want to be
    together, each domain of that key (the first pod of a series must not start where the rest has no room)."""
    if question.prefer_topology_key:
        yield from _by_domain(question, board, question.prefer_topology_key, question.minimum)
    yield None
    for key in _together(question):
        yield from _by_domain(question, board, key, question.minimum)


def _together(question: Question) -> list[str]:
    """Topology keys in whose domains members want to be together."""
    return sorted({term.topology_key for demand in question.demands for term in demand.pod_class.affinity})


def _by_domain(question: Question, board: Board, key: str, minimum: int) -> list[set[str]]:
    """Domains that may hold the minimum, as far as counting tells; tightest first."""
    domains: dict[str, set[str]] = {}
    supply: dict[str, int] = {}
    for demand in question.demands:
        for room in board.rooms(demand.pod_class, demand.avoid, None):
            value = room.node.labels.get(key) if room.node is not None else None
            if value is None:
                continue
            domains.setdefault(value, set()).add(room.name)
            count = board.count(room, demand.pod_class)
            supply[value] = supply.get(value, 0) + min(count, demand.wanted)
    enough = [value for value in domains if supply[value] >= minimum]
    enough.sort(key=lambda value: (supply[value], value))
    return [domains[value] for value in enough[:MAX_DOMAINS]]


def _wasted_devices(board: Board, pod_class: PodClass, room: Room) -> int:
    """Kinds of devices free on the node that the class does not ask for."""
    charge = pod_class.charge
    return sum(1 for name, units in board.free(room).items() if units > 0 and "/" in name and name not in charge)


def _size(pod_class: PodClass) -> float:
    """A rough order of requests: devices before bytes and cores."""
    charge = pod_class.charge
    devices = sum(units for name, units in charge.items() if "/" in name)
    return devices * 1e6 + charge.get("cpu", 0) + charge.get("memory", 0) / (1 << 20)
