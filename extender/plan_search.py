"""Exact search for a packing that greedy orders missed, within a bounded number of steps.

Facts it stands on: for one class without topology rules greedy counting is exact; on tight clusters with several
classes it misses a few per cent of the packings that exist. The search is complete for small cases and gives up on
large ones, where a near miss hardly ever is the only packing.
"""

from extender.board import Board
from extender.ledger import Room
from kube.objects.pod_class import PodClass

MAX_STEPS = 4000
MAX_WORK = 40_000
"""Steps times nodes: each step looks at the nodes."""

Part = tuple[PodClass, list[Room], int]
"""A class, the nodes it may use, the number of pods."""
Found = list[tuple[int, Room, int]]
"""(index of the part, node, number of pods)."""


def search(board: Board, parts: list[Part]) -> Found | None:
    """Places for every pod of every part, or None (none exists, or the steps are used up). The board is put back."""
    if len(parts) < 2 and not any(board.one_by_one(pod_class) for pod_class, _, _ in parts):
        return None  # greedy was exact
    order = sorted(
        (index for index, part in enumerate(parts) if part[2] > 0),
        key=lambda index: (len(parts[index][1]), -_weight(parts[index][0])),
    )
    run = _Search(board, parts, order)
    mark = board.mark()
    try:
        return run.found if run.part(0) else None
    finally:
        board.rollback(mark)


class _Search:
    def __init__(self, board: Board, parts: list[Part], order: list[int]) -> None:
        self.board = board
        self.parts = parts
        self.order = order
        nodes = max((len(rooms) for _, rooms, _ in parts), default=1)
        self.steps_left = min(MAX_STEPS, MAX_WORK // max(1, nodes))
        self.found: Found = []
        self.likeness: dict[str, int] = {}
        """Node -> number shared by nodes with the same room, open to the same parts."""
        seen: dict[tuple[object, ...], int] = {}
        members = [{room.name for room in rooms} for _, rooms, _ in parts]
        for _, rooms, _ in parts:
            for room in rooms:
                if room.name not in self.likeness:
                    looks = (
                        tuple(sorted(board.free(room).items())),
                        tuple(room.name in names for names in members),
                        tuple(room.ports()),
                    )
                    self.likeness[room.name] = seen.setdefault(looks, len(seen))

    def part(self, depth: int) -> bool:
        """Place the parts from `depth` on; True with `found` complete."""
        if depth == len(self.order):
            return True
        pod_class, rooms, need = self.parts[self.order[depth]]
        if not self._rest_possible(depth):
            return False
        if self.board.one_by_one(pod_class):
            return self._pod(depth, pod_class, rooms, need)
        counts = [self.board.count(room, pod_class) for room in rooms]
        usable = [(room, min(count, need)) for room, count in zip(rooms, counts, strict=True) if count]
        usable.sort(key=lambda entry: (entry[1], self.likeness[entry[0].name], entry[0].name))
        behind = [0] * (len(usable) + 1)
        for position in range(len(usable) - 1, -1, -1):
            behind[position] = behind[position + 1] + usable[position][1]
        return self._node(depth, usable, behind, 0, need)

    def _node(self, depth: int, usable: list[tuple[Room, int]], behind: list[int], position: int, need: int) -> bool:
        """Share `need` pods of one part out over the nodes from `position` on."""
        if need == 0:
            return self.part(depth + 1)
        if behind[position] < need or not self._step():
            return False
        room, most = usable[position]
        pod_class = self.parts[self.order[depth]][0]
        current = self.order[depth]
        same = position > 0 and self._same(usable[position - 1][0], room, current)
        before = self._taken_on(usable[position - 1][0], current) if same else need
        for count in range(min(most, need, before), -1, -1):
            if behind[position + 1] < need - count:
                break
            if count:
                mark = self.board.mark()
                self.board.take(room, pod_class, count)
                self.found.append((self.order[depth], room, count))
            if self._node(depth, usable, behind, position + 1, need - count):
                return True
            if count:
                self.found.pop()
                self.board.rollback(mark)
        return False

    def _pod(self, depth: int, pod_class: PodClass, rooms: list[Room], need: int) -> bool:
        """One pod after the other, for classes that topology rules couple."""
        if need == 0:
            return self.part(depth + 1)
        if not self._step():
            return False
        for room in rooms:
            if not self.board.count(room, pod_class) or self.board.forbidden(room, pod_class) is not None:
                continue
            mark = self.board.mark()
            self.board.take(room, pod_class, 1)
            self.found.append((self.order[depth], room, 1))
            if self._pod(depth, pod_class, rooms, need - 1):
                return True
            self.found.pop()
            self.board.rollback(mark)
            if self.steps_left <= 0:
                return False
        return False

    def _rest_possible(self, depth: int) -> bool:
        """Each part that is left still fits alone."""
        for index in self.order[depth:]:
            pod_class, rooms, need = self.parts[index]
            for room in rooms:
                need -= self.board.count(room, pod_class)
                if need <= 0:
                    break
            if need > 0:
                return False
        return True

    def _same(self, one: Room, other: Room, current: int) -> bool:
        """Interchangeable nodes before this part: only one order of their shares needs trying."""
        return self.likeness[one.name] == self.likeness[other.name] and self._shares(one, current) == self._shares(
            other, current
        )

    def _shares(self, room: Room, current: int) -> list[tuple[int, int]]:
        return [(index, count) for index, where, count in self.found if where is room and index != current]

    def _taken_on(self, room: Room, current: int) -> int:
        return sum(count for index, where, count in self.found if where is room and index == current)

    def _step(self) -> bool:
        self.steps_left -= 1
        return self.steps_left > 0


def _weight(pod_class: PodClass) -> int:
    return sum(units for name, units in pod_class.charge.items() if "/" in name) * 1_000_000 + pod_class.charge.get(
        "cpu", 0
    )
