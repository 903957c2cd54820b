"""When a request arrived, for a process that may have been stopped (SIGSTOP, a paused machine) meanwhile.

A request read after a stop may have lain in the socket's buffer all the time, its sender long gone. What is known for
sure is only that it came after the loop last looked at its sockets: so after a gap, whatever is read within the next
moment counts as having arrived when the gap began.
"""

from kube.api.clock import Clock


class ArrivalClock:
    """Tells arrival times; `run` has to be running for it to notice gaps.

    beat: seconds between two looks at the clock; a gap longer than two beats counts as a stop.
    settle: for how long after a gap requests may still come out of old buffers.
    """

    def __init__(self, clock: Clock, *, beat: float = 0.5, settle: float = 1.0) -> None:
        self._clock = clock
        self._beat = beat
        self._settle = settle
        self._last_beat = clock.monotonic()
        self._gap_began = 0.0
        self._gap_noticed = float("-inf")

    def stamp(self) -> float:
        """Monotonic second no later than the true arrival of a request that is being read now."""
        now = self._look()
        return self._gap_began if now < self._gap_noticed + self._settle else now

    async def run(self) -> None:
        """Beats until cancelled."""
        while True:
            await self._clock.sleep(self._beat)
            self._look()
            self._last_beat = self._clock.monotonic()

    def _look(self) -> float:
        now = self._clock.monotonic()
        if now - self._last_beat > 2 * self._beat:
            # A second stop before the buffers were read empty: what is in them may be from before the first.
            if self._last_beat >= self._gap_noticed + self._settle:
                self._gap_began = self._last_beat
            self._gap_noticed = now
            self._last_beat = now
        return now
