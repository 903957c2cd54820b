"""Who this hub is, how often it was taken over, and the ids of its jobs.

The hub id is made once and kept in ConfigMap muster-system/muster-hub: an object in a member without it is not ours.
The incarnation in the same object is raised at each take-over and written into each member's hub Lease (rule 18).
"""

import re
import secrets

import msgspec

from kube.api.api import CONFIG_MAPS, Api
from kube.api.errors import Conflict
from kube.api.writes import create_or_read, replace
from kube.objects.meta import ObjectMeta
from kube.objects.names import MUSTER_NAMESPACE

CONFIG_MAP = "muster-hub"
HUB_ID_KEY = "hubID"
INCARNATION_KEY = "incarnation"

MAX_ID = 40
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_RANDOM = 10


class HubIdentity(msgspec.Struct, frozen=True):
    hub_id: str
    incarnation: int


class ConfigMap(msgspec.Struct, rename="camel", kw_only=True):
    """Only string data: that is all this object ever holds."""

    api_version: str = "v1"
    kind: str = "ConfigMap"
    metadata: ObjectMeta
    data: dict[str, str] = {}


async def take_over(api: Api, *, timeout: float) -> HubIdentity:
    """The hub's id (made if missing) with the incarnation raised by one. Raises ApiError, and ValueError for a
    ConfigMap that was damaged by hand: making a new id would orphan every running job."""
    return await raise_above(api, 0, timeout=timeout)


async def raise_above(api: Api, incarnation: int, *, timeout: float) -> HubIdentity:
    """As `take_over`, to a higher incarnation than `incarnation` and than any before."""
    fresh = ConfigMap(
        metadata=ObjectMeta(name=CONFIG_MAP, namespace=MUSTER_NAMESPACE),
        data={HUB_ID_KEY: f"hub-{_random(12)}", INCARNATION_KEY: "0"},
    )
    while True:
        found, _ = await create_or_read(api, CONFIG_MAPS, fresh, timeout=timeout)
        hub_id, count = found.data.get(HUB_ID_KEY, ""), found.data.get(INCARNATION_KEY, "0")
        if not hub_id or not count.isdigit():
            raise ValueError(
                f"ConfigMap {MUSTER_NAMESPACE}/{CONFIG_MAP} must hold {HUB_ID_KEY} and a whole number "
                f"{INCARNATION_KEY}: restore it from a backup; the id is in annotation muster.dev/hub-id of every "
                "object in the members"
            )
        higher = max(int(count), incarnation) + 1
        raised = msgspec.structs.replace(found, data=found.data | {INCARNATION_KEY: str(higher)})
        try:
            await replace(api, CONFIG_MAPS, raised, timeout=timeout)
        except Conflict:
            continue
        return HubIdentity(hub_id, higher)


def mint_job_id(job_name: str) -> str:
    """A new id: a DNS-1035 label of at most 40 characters that begins with the job's name, for people.

    It ends reservation names as `<id>-<epoch>`, so it stays well below a label's 63."""
    return f"{_readable(job_name)}-{_random(_RANDOM)}"


def may_be_id_of(job_id: str, job_name: str) -> bool:
    """Whether the id has the form of those that are minted for jobs of this name."""
    prefix, _, random = job_id.rpartition("-")
    return prefix == _readable(job_name) and len(random) == _RANDOM and set(random) <= set(_ALPHABET)


def _readable(job_name: str) -> str:
    readable = re.sub(r"[^a-z0-9-]", "-", job_name.lower()).lstrip("0123456789-")
    return readable[: MAX_ID - _RANDOM - 1].rstrip("-") or "job"


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
