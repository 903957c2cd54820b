"""Which whole jobs give borrowed quota back to a queue that is below its guarantee.

Who may take from whom is decided where their paths part: below that node, every node of the claimant's path stays
within its min with the ask (on everything it asks for that is limited anywhere on its path), and every node of the
victim's path is above its min on the resource that is short. So a claimant is no borrower afterwards, and a victim,
whose queue was above its min with it, is not entitled to take anything back: no loop (F12, kueue#13662).
"""

from collections.abc import Iterable

import msgspec

from dispatcher.quota import Ask, Blocked, Entry, Ledger
from dispatcher.quota_tree import MAX_JOBS, NodePath, ancestors


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    binding_id: str
    priority: int
    admitted_at: str
    """RFC 3339; the youngest goes first."""
    in_flight: bool = False
    """Already being evicted: counts as gone, is never chosen."""


class Reclaim(msgspec.Struct, frozen=True, kw_only=True):
    victims: tuple[str, ...]
    """Binding ids, to evict whole; empty if it is impossible or needless."""
    reason: str
    """For the claimant if there are none ("" if quota admits it as it is), for the victims otherwise."""


def reclaim(claimant: Ask, binding_id: str, ledger: Ledger, admitted: Iterable[Admitted]) -> Reclaim:
    """Victims for one claimant: lowest priority first, then the youngest, then the one that gives back least; none that
    turns out to be needless. The ledger is as before afterwards; the caller holds the room (`Ledger.hold`), evicts, and
    asks again only when that is done."""
    if ledger.blocked(claimant, binding_id) is None:
        return Reclaim(victims=(), reason="")
    jobs = sorted(admitted, key=lambda job: job.admitted_at, reverse=True)
    jobs.sort(key=lambda job: job.priority)
    taken: dict[str, Entry] = {}
    try:
        for job in jobs:
            if job.in_flight and job.binding_id in ledger.entries():
                _take(ledger, job.binding_id, taken)
        victims: list[str] = []
        while (blocked := ledger.blocked(claimant, binding_id)) is not None:
            left = [job for job in jobs if job.binding_id in ledger.entries()]
            victim = _next_victim(claimant, blocked, ledger, left)
            if victim is None:
                return Reclaim(victims=(), reason=blocked.message)
            _take(ledger, victim, taken)
            victims.append(victim)
        for victim in list(victims):
            _give_back(ledger, victim, taken)
            if ledger.blocked(claimant, binding_id) is None:
                victims.remove(victim)
            else:
                _take(ledger, victim, taken)
    finally:
        for victim in list(taken):
            _give_back(ledger, victim, taken)
    if not victims:
        return Reclaim(victims=(), reason=f"queue {'/'.join(claimant.path)}: waits for jobs that give back its quota")
    return Reclaim(
        victims=tuple(victims),
        reason=f"gives borrowed quota back to queue {'/'.join(claimant.path)}, which is below its min",
    )


def beyond_limits(ledger: Ledger, admitted: Iterable[Admitted]) -> dict[str, str]:
    """After limits were lowered: preemptible jobs that have to go until every node is within its max again, binding id
    -> why. In the order of `reclaim`."""
    jobs = sorted(admitted, key=lambda job: job.admitted_at, reverse=True)
    jobs.sort(key=lambda job: job.priority)
    taken: dict[str, Entry] = {}
    victims: dict[str, str] = {}
    try:
        for job in jobs:
            if job.in_flight and job.binding_id in ledger.entries():
                _take(ledger, job.binding_id, taken)
        for path, node in ledger.tree.nodes.items():
            for resource, limit in node.max.items():
                for job in jobs:
                    if ledger.used(path).get(resource, 0) <= limit:
                        break
                    entry = ledger.entries().get(job.binding_id)
                    if entry is None or not entry.preemptible or not entry.amounts.get(resource):
                        continue
                    if entry.home[: len(path)] == path:
                        _take(ledger, job.binding_id, taken)
                        victims[job.binding_id] = f"queue {node.full_name}: its max of {resource} was lowered"
    finally:
        for binding_id in list(taken):
            _give_back(ledger, binding_id, taken)
    return victims


def _take(ledger: Ledger, binding_id: str, taken: dict[str, Entry]) -> None:
    entry = ledger.release(binding_id)
    assert entry is not None
    taken[binding_id] = entry


def _give_back(ledger: Ledger, binding_id: str, taken: dict[str, Entry]) -> None:
    entry = taken.pop(binding_id)
    ledger.charge(binding_id, Ask(path=entry.charged_at, amounts=entry.amounts, preemptible=entry.preemptible))


def _next_victim(claimant: Ask, blocked: Blocked, ledger: Ledger, jobs: list[Admitted]) -> str | None:
    """`jobs` in the order they go in. Among equals (priority and age) the one that gives back least."""
    if blocked.bound != "max":
        return None
    best: tuple[int, str, int] | None = None
    chosen: str | None = None
    for job in jobs:
        entry = ledger.entries()[job.binding_id]
        gives = entry.amounts.get(blocked.resource, 0)
        if not gives or not entry.preemptible or not _may_take(claimant, entry.home, blocked, ledger):
            continue
        if best is not None and (job.priority, job.admitted_at) != best[:2]:
            break
        if best is None or gives < best[2]:
            best, chosen = (job.priority, job.admitted_at, gives), job.binding_id
    return chosen


def _may_take(claimant: Ask, victim: NodePath, blocked: Blocked, ledger: Ledger) -> bool:
    common = 0
    for ours, theirs in zip(claimant.path, victim, strict=False):
        if ours != theirs:
            break
        common += 1
    if common < len(blocked.path) or victim[: len(blocked.path)] != blocked.path:
        return False
    borrowing = all(
        ledger.borrowed(path).get(blocked.resource, 0) > 0 for path in ancestors(victim) if len(path) > common
    )
    return borrowing and len(victim) > common and entitled(claimant, common, blocked.resource, ledger)


def entitled(claimant: Ask, common: int, resource: str, ledger: Ledger) -> bool:
    """Every node of the claimant's path below depth `common` stays within its min, on all it asks for that some node of
    the path limits, and on `resource` in any case. Jobs count where min names max-jobs."""
    nodes = ledger.tree.nodes
    limited = {name for path in ancestors(claimant.path) for name in nodes[path].max} - {MAX_JOBS} | {resource}
    for path in ancestors(claimant.path):
        if len(path) <= common:
            continue
        used, least = ledger.used(path), nodes[path].min
        for name, units in claimant.amounts.items():
            counted = name in limited or (name == MAX_JOBS and MAX_JOBS in least)
            if counted and units > 0 and used.get(name, 0) + units > least.get(name, 0):
                return False
    return len(claimant.path) > common
