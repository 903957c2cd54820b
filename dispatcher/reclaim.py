"""Which whole jobs give borrowed quota back to a queue that is below its guarantee.

Only a job that stays within its leaf's min may claim, only use above min is taken back, never from a job that would
itself be entitled to it: so a preempted job cannot preempt back (F12, kueue#13662).
"""

from collections.abc import Iterable

import msgspec

from dispatcher.quota import Ask, Ledger


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    binding_id: str
    priority: int
    admitted_at: str
    """RFC 3339; the youngest goes first."""
    in_flight: bool = False
    """Already being evicted: counts as going, is never chosen."""


class Reclaim(msgspec.Struct, frozen=True, kw_only=True):
    victims: tuple[str, ...]
    """Binding ids, to evict whole; empty if it is impossible or needless."""
    reason: str
    """For the claimant if empty, for the victims otherwise."""


def reclaim(claimant: Ask, ledger: Ledger, admitted: Iterable[Admitted]) -> Reclaim:
    """The smallest set found greedily: lowest priority, then youngest, then the least over-share."""
    raise NotImplementedError
