"""Notices that the hub was restored from a backup, and keeps admission shut until that can do no harm (rule 18).

Each take-over raises the hub's incarnation and writes it into every member's hub Lease. A member that shows a higher
one has seen a later hub than this: records of ours are missing. Until every member has been read (its reservations,
copies and pods are found by id then, and what runs is adopted) or is fenced, nothing new is admitted; then the
incarnation is raised above all that was shown, and the members' Leases are renewed again.
"""

import logging
from collections.abc import Callable

from dispatcher.fleet import Fleet
from dispatcher.identity import HubIdentity, raise_above
from kube.api.api import Api
from kube.api.errors import ApiError

log = logging.getLogger(__name__)


class RestoreGuard:
    """on_raised(identity): the hub goes on as this incarnation."""

    def __init__(
        self,
        hub: Api,
        fleet: Fleet,
        identity: HubIdentity,
        *,
        call_seconds: float,
        on_raised: Callable[[HubIdentity], None],
    ) -> None:
        self._hub = hub
        self._fleet = fleet
        self._identity = identity
        self._call_seconds = call_seconds
        self._on_raised = on_raised
        self._told = ""

    @property
    def shut(self) -> str:
        """Why nothing is admitted; "" when the hub was not restored, or that has been dealt with."""
        witnesses = [m.name for m in self._fleet if m.shown_incarnation > self._identity.incarnation]
        if not witnesses:
            return ""
        unread = [m.name for m in self._fleet if m.verdict().connection not in ("Reachable", "Fenced")]
        text = f"the hub was restored from a backup ({', '.join(sorted(witnesses))} has seen a later one)"
        return f"{text}: nothing is admitted until {', '.join(sorted(unread))} is read, or fenced" if unread else text

    async def look(self) -> None:
        """To be called often: goes on as soon as every member has been read."""
        why = self.shut
        if why != self._told:
            self._told = why
            if why:
                log.error("%s", why)
        if not why or any(m.verdict().connection not in ("Reachable", "Fenced") for m in self._fleet):
            return
        highest = max(member.shown_incarnation for member in self._fleet)
        try:
            self._identity = await raise_above(self._hub, highest, timeout=self._call_seconds)
        except ApiError as error:
            log.warning("the hub's incarnation cannot be raised: %s", error)
            return
        log.warning("every member was read after the restore: going on as incarnation %d", self._identity.incarnation)
        self._on_raised(self._identity)
