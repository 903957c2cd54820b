"""How long to wait before trying again."""

from random import Random

import msgspec


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Exponential, capped, with jitter so that many clients of one server do not come back in step. Seconds."""

    first: float = 0.2
    factor: float = 2.0
    cap: float = 15.0
    jitter: float = 0.5
    """Share of the delay that is random: 0.5 gives 0.5 to 1 times the nominal delay."""

    def delay(self, failures: int, rng: Random, at_least: float | None = None) -> float:
        """Seconds before the next try after `failures` (>= 1) in a row; at_least: the server's Retry-After."""
        nominal = min(self.cap, self.first * self.factor ** min(failures - 1, 64))
        jittered = nominal * (1 - self.jitter * rng.random())
        return max(jittered, at_least or 0.0)
