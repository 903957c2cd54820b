"""Bounded claims: how the gang that has waited longest gets its turn in a member that small jobs would keep full.

One claim per member, for a bounded time, then a pause (F11, kueue#8309): so a claim cannot idle a member for ever.
"""

import msgspec


class ClaimSettings(msgspec.Struct, frozen=True, kw_only=True):
    after: float = 300.0
    """Seconds a gang has waited for room alone before it may claim."""
    hold: float = 600.0
    """Seconds a claim may last."""
    pause: float = 300.0
    """Seconds without a claim in that member afterwards."""


class _Claim(msgspec.Struct, frozen=True):
    binding_id: str
    since: float


DEFAULTS = ClaimSettings()


class Claims:
    """Seconds on one monotonic clock. After a restart it is empty: claims are granted anew."""

    def __init__(self, settings: ClaimSettings = DEFAULTS) -> None:
        self._settings = settings
        self._held: dict[str, _Claim] = {}
        self._free_from: dict[str, float] = {}
        self._lacking_since: dict[str, float] = {}

    def lacks_room(self, binding_id: str, now: float) -> float:
        """Quota admits it and some member lacks room for it. Returns the seconds since that was so first."""
        return now - self._lacking_since.setdefault(binding_id, now)

    @property
    def waiting(self) -> bool:
        """Whether time alone can change anything here."""
        return bool(self._held or self._lacking_since)

    def restore(self, binding_id: str, cluster: str, now: float) -> None:
        """A claim that a former process recorded; its time starts anew."""
        self._held.setdefault(cluster, _Claim(binding_id, now))

    def grant(self, binding_id: str, cluster: str, waited: float, now: float) -> bool:
        """Whether this job may claim this member now; remembered if so. Idempotent while it holds. A job holds one
        claim at a time."""
        held = self._held.get(cluster)
        if held is not None:
            return held.binding_id == binding_id
        if waited < self._settings.after or now < self._free_from.get(cluster, now):
            return False
        if any(claim.binding_id == binding_id for claim in self._held.values()):
            return False
        self._held[cluster] = _Claim(binding_id, now)
        return True

    def claimed(self, binding_id: str) -> str:
        """The member this job claims, "" for none."""
        return next((cluster for cluster, claim in self._held.items() if claim.binding_id == binding_id), "")

    def end(self, binding_id: str, now: float) -> None:
        """It landed, went elsewhere, was held or deleted."""
        cluster = self.claimed(binding_id)
        if cluster:
            del self._held[cluster]
            self._free_from[cluster] = now + self._settings.pause

    def settled(self, binding_id: str, now: float) -> None:
        """It has a place, was held or is gone: its wait is over as well."""
        self._lacking_since.pop(binding_id, None)
        self.end(binding_id, now)

    def expired(self, now: float) -> list[tuple[str, str]]:
        """(binding id, cluster) of claims past `hold`; ended by this call. Its wait goes on."""
        over = [
            (claim.binding_id, cluster)
            for cluster, claim in self._held.items()
            if now - claim.since >= self._settings.hold
        ]
        for binding_id, _ in over:
            self.end(binding_id, now)
        return over

    def forget(self, cluster: str) -> None:
        """The member was removed."""
        self._held.pop(cluster, None)
        self._free_from.pop(cluster, None)
