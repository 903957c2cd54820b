"""All members: one `Member` per MemberCluster, started, reconfigured and ended as objects and Secrets come and go."""

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable, Iterator

from dispatcher.hub_watches import HubWatches, Secret
from dispatcher.members import Member
from kube.api.reflector import Change
from kube.objects.member_cluster import MemberCluster
from kube.objects.names import MUSTER_NAMESPACE

log = logging.getLogger(__name__)

KUBECONFIG_KEY = "kubeconfig"


class Fleet:
    """make: builds a Member for a MemberCluster. Subscribe (construct) before the hub's watches run; `run()` belongs in
    a TaskGroup."""

    def __init__(
        self, watches: HubWatches, make: Callable[[MemberCluster], Member], on_state: Callable[[str], None]
    ) -> None:
        self._watches = watches
        self._make = make
        self._on_state = on_state
        self._members: dict[str, Member] = {}
        self._running: dict[str, tuple[Member, asyncio.Task[None]]] = {}
        self._dirty = asyncio.Event()
        watches.members.subscribe(self._on_member)
        watches.secrets.subscribe(self._on_secret)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def get(self, name: str) -> Member | None:
        return self._members.get(name)

    def _on_member(self, _: Change, old: MemberCluster | None, new: MemberCluster | None) -> None:
        if new is None:
            if old is not None:
                self._members.pop(old.metadata.name, None)
                self._on_state(old.metadata.name)
        else:
            name = new.metadata.name
            known = self._members.get(name)
            if known is not None and old is not None and old.metadata.uid != new.metadata.uid:
                known = None  # removed and joined again: nothing of the old connection counts
            member = known or self._make(new)
            self._members[name] = member
            member.configure(new, self._kubeconfig(new))
            if known is None or old is None or old.spec != new.spec or old.metadata.labels != new.metadata.labels:
                self._on_state(name)
        self._dirty.set()

    def _on_secret(self, _: Change, old: Secret | None, new: Secret | None) -> None:
        secret = new or old
        name = secret.metadata.name if secret else ""
        for member in self._members.values():
            if member.cluster.spec.kubeconfig_secret.name == name:
                member.configure(member.cluster, self._kubeconfig(member.cluster))

    def _kubeconfig(self, cluster: MemberCluster) -> bytes | None:
        secret = self._watches.secrets.get(MUSTER_NAMESPACE, cluster.spec.kubeconfig_secret.name)
        encoded = (secret.data or {}).get(KUBECONFIG_KEY) if secret else None
        if encoded is None:
            return None
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error:
            return b""  # refused by validation, with a reason

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._dirty.clear()
                for name, (member, task) in list(self._running.items()):
                    if self._members.get(name) is not member:
                        task.cancel()
                        del self._running[name]
                for name, member in self._members.items():
                    if name not in self._running:
                        log.info("member %s: connecting", name)
                        self._running[name] = (member, tasks.create_task(member.run(), name=f"member {name}"))
                await self._dirty.wait()
