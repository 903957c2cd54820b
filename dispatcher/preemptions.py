"""Reclaiming over time: one set of victims per claimant, and what they free is kept for it until it has landed.

`dispatcher.reclaim` chooses the victims; this remembers for whom they go. What is held for claimants counts as used
while others are judged, so that together they take no more back than their queues are guaranteed. A claimant that does
not land although its quota was freed (no member can hold it) gives the room up and rests, ever longer, before it may
ask again (F12).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from dispatcher.backoff import Backoff
from dispatcher.queueing import Waiting
from dispatcher.quota import Ask, Ledger
from dispatcher.reclaim import Admitted, Reclaim, entitled, reclaim

NOBODY = Reclaim(victims=(), reason="")


class ReclaimSettings(msgspec.Struct, frozen=True, kw_only=True):
    hold: float = 600.0
    """Seconds for which freed quota is kept after the last victim is gone."""
    rest: float = 300.0
    """First pause of a claimant that could not use what was freed, doubled each time."""
    rest_max: float = 86_400.0


DEFAULTS = ReclaimSettings()


class _Set(msgspec.Struct):
    ask: Ask
    going: set[str]
    """Victims that are still charged."""
    since: float
    """When it was chosen; once nobody is going any more, since when."""


class Preemptions:
    """Seconds on one monotonic clock. Ids are binding ids. After a restart it is empty: claimants are judged anew, with
    the jobs that are on their way out counted as gone."""

    def __init__(self, settings: ReclaimSettings = DEFAULTS) -> None:
        self._settings = settings
        self._sets: dict[str, _Set] = {}
        self._rest: Backoff[str] = Backoff(settings.rest, settings.rest_max)

    def __len__(self) -> int:
        return len(self._sets)

    def __contains__(self, claimant: object) -> bool:
        return claimant in self._sets

    def choose(
        self, claimant: Waiting, ledger: Ledger, admitted: Callable[[], Iterable[Admitted]], now: float
    ) -> Reclaim:
        """Victims for this waiting job; none if it has a set already, rests, or may not take any. `admitted` is asked
        only where it matters. Nothing is held yet: see `begin`."""
        ask = claimant.ask
        if ask is None or claimant.binding_id in self._sets or self._rest.left(claimant.binding_id, now) > 0:
            return NOBODY
        with _holds_as_use(ledger):
            blocked = ledger.blocked(ask, claimant.binding_id)
            if blocked is None or blocked.bound != "max" or len(blocked.path) >= len(ask.path):
                return NOBODY
            if not entitled(ask, len(ask.path) - 1, blocked.resource, ledger):
                return NOBODY  # its leaf alone would be above its min: whoever's path is compared
            return reclaim(ask, claimant.binding_id, ledger, admitted())

    def begin(self, claimant: Waiting, victims: Iterable[str], ledger: Ledger, now: float) -> None:
        assert claimant.ask is not None
        self._sets[claimant.binding_id] = _Set(claimant.ask, set(victims), now)
        ledger.hold(claimant.binding_id, claimant.ask)

    def charged(self, binding_id: str, ledger: Ledger) -> None:
        """It was admitted: charged now, so held no more. The set stays until it has landed."""
        ledger.unhold(binding_id)

    def released(self, binding_id: str, ledger: Ledger, now: float) -> None:
        """Its charge was given back: a claimant whose attempt was refused keeps its room, a victim is gone."""
        own = self._sets.get(binding_id)
        if own is not None:
            ledger.hold(binding_id, own.ask)
            own.since = now
        for each in self._sets.values():
            if binding_id in each.going:
                each.going.discard(binding_id)
                each.since = now

    def end(self, claimant: str, ledger: Ledger) -> bool:
        """It has landed, was held, changed or is gone. Whether room that was kept for it is free now."""
        self._rest.forget(claimant)
        return self._drop(claimant, ledger)

    def spared(self, victim: str, ledger: Ledger) -> bool:
        """A victim that was chosen is not going after all: its claimants are judged anew."""
        claimants = [claimant for claimant, each in self._sets.items() if victim in each.going]
        for claimant in claimants:
            self._drop(claimant, ledger)
        return bool(claimants)

    def pass_on(self, alike: Callable[[str], Sequence[str]], ledger: Ledger) -> list[str]:
        """Of jobs that are alike the first are served first: what was freed for one is theirs. `alike`: ids of a
        waiting job's like in order, itself included. Returns who holds room now and did not before."""
        heirs = []
        for claimant in list(self._sets):
            for heir in alike(claimant):
                if heir == claimant:
                    break
                if heir not in self._sets:
                    found = self._sets[heir] = self._sets.pop(claimant)
                    ledger.unhold(claimant)
                    ledger.hold(heir, found.ask)
                    heirs.append(heir)
                    break
        return heirs

    def expire(self, ledger: Ledger, now: float) -> list[str]:
        """Claimants that did not land in time: their room is free for all, and they rest."""
        over = [
            claimant
            for claimant, each in self._sets.items()
            if not each.going and claimant in ledger.holds() and now - each.since >= self._settings.hold
        ]
        for claimant in over:
            self._drop(claimant, ledger)
            self._rest.failed(claimant, now)
        return over

    def _drop(self, claimant: str, ledger: Ledger) -> bool:
        self._sets.pop(claimant, None)
        return ledger.unhold(claimant)


@contextmanager
def _holds_as_use(ledger: Ledger) -> Iterator[None]:
    """Another claimant's share of the guarantee is spoken for."""
    holds = dict(ledger.holds())
    for claimant, ask in holds.items():
        ledger.unhold(claimant)
        ledger.charge(_charge_id(claimant), ask)
    try:
        yield
    finally:
        for claimant, ask in holds.items():
            ledger.release(_charge_id(claimant))
            ledger.hold(claimant, ask)


def _charge_id(claimant: str) -> str:
    return f"held for {claimant}"
