"""What goes wrong between a client and a simulated API server: drawn from a seed, or told to happen."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from random import Random
from typing import NamedTuple

from tests.simulation.apiserver import Request


class Fault(StrEnum):
    REFUSED = "refused"
    """No connection: not done, Unreachable at once."""
    LOST = "lost"
    """Done, but the answer is lost: Unreachable."""
    HANG = "hang"
    """Not done, never answered: Unreachable when the call's time is over."""
    LATE = "late"
    """Unreachable when the call's time is over, and done some time after that: a request that was stuck on its way."""
    SLOW = "slow"
    """Done, answered late: within the call's time or not."""
    BUSY = "busy"
    """429 with Retry-After 1."""
    ERROR = "error"
    """500, not done."""
    ERROR_DONE = "error-done"
    """504, done all the same."""


class _Told(NamedTuple):
    fault: Fault
    applies: Callable[[Request], bool]


class Faults:
    """rates: probability of each fault per call (not for watches). latency: seconds each way, drawn between the two.
    watch_lag: seconds from a write to its event at this client. cut_every: mean seconds after which a watch breaks.
    """

    def __init__(
        self,
        rng: Random | None = None,
        *,
        rates: Mapping[Fault, float] | None = None,
        latency: tuple[float, float] = (0.001, 0.005),
        watch_lag: tuple[float, float] = (0.001, 0.01),
        cut_every: float | None = None,
        late_seconds: float = 30.0,
    ) -> None:
        self.rng = rng or Random(0)
        self.rates = dict(rates or {})
        self.latency = latency
        self.watch_lag = watch_lag
        self.cut_every = cut_every
        self.late_seconds = late_seconds
        self.calm = False
        """True: nothing is drawn any more (let a system settle); what was told still happens."""
        self._told: list[_Told] = []

    def tell(
        self,
        fault: Fault,
        *,
        verb: str = "",
        resource: str = "",
        name: str = "",
        where: Callable[[Request], bool] | None = None,
        times: int = 1,
    ) -> None:
        """The next `times` requests that match get this fault. resource: "pods/binding"."""

        def applies(request: Request) -> bool:
            return (
                verb in ("", request.verb)
                and resource in ("", request.resource)
                and name in ("", request.name)
                and (where is None or where(request))
            )

        self._told.extend([_Told(fault, applies)] * times)

    def draw(self, request: Request) -> Fault | None:
        for told in self._told:
            if told.applies(request):
                self._told.remove(told)
                return told.fault
        if not self.calm and request.verb != "watch":
            for fault, rate in self.rates.items():
                if self.rng.random() < rate:
                    return fault
        return None

    def one_way(self) -> float:
        return self.rng.uniform(*self.latency)

    def lag(self) -> float:
        return self.rng.uniform(*self.watch_lag)

    def watch_lives(self) -> float | None:
        """Seconds until this watch is cut; None: it is not."""
        if self.cut_every is None or self.calm:
            return None
        return self.rng.expovariate(1 / self.cut_every)
