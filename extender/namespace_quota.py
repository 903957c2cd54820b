"""Whether the namespace's ResourceQuotas leave room for pods that do not exist yet.

Pods that exist are in `status.used` already. Scoped quotas are not judged here (their scopes depend on fields that a
class does not keep); the API server is the judge when the pods are made.
"""

from collections.abc import Iterable

from extender.world import World
from kube.objects.quantity import QuantityError
from kube.objects.resource_quota import ResourceQuota
from kube.objects.resources import Resources, parse_resources

_COUNTS = ("pods", "count/pods")


def lacking(world: World, namespace: str, unseen: Iterable[tuple[Resources, int]], *, besides: str) -> str:
    """Which quota the unseen pods (request with "pods", how many) would break; "" if none.

    besides: gang key; what other gangs of the namespace were promised and have no pod for yet counts as used.
    """
    quotas = [quota for (where, _), quota in world.quotas.items() if where == namespace and not _scoped(quota)]
    if not quotas:
        return ""
    asked: Resources = {}
    for request, count in unseen:
        for name, units in request.items():
            asked[name] = asked.get(name, 0) + units * count
    for gang in world.gangs.values():
        if gang.key != besides and gang.namespace == namespace and gang.hub is not None:
            for slot in world.slots_of(gang):
                if not slot.uid:
                    for name, units in slot.pod_class.charge.items():
                        asked[name] = asked.get(name, 0) + units
    for quota in sorted(quotas, key=lambda each: each.metadata.name):
        short = _short(quota, asked)
        if short:
            return f"blocked: quota {quota.metadata.name} is short of {short}"
    return ""


def _scoped(quota: ResourceQuota) -> bool:
    return bool(quota.spec.scopes or quota.spec.scope_selector)


def _short(quota: ResourceQuota, asked: Resources) -> str:
    try:
        hard = parse_resources(quota.status.hard or quota.spec.hard, keep_zero=True)
        used = parse_resources(quota.status.used)
    except QuantityError:
        return ""
    for name in sorted(hard):
        resource = "pods" if name in _COUNTS else name.removeprefix("requests.")
        if name.startswith("limits."):
            continue
        if asked.get(resource, 0) and used.get(name, 0) + asked[resource] > hard[name]:
            return name
    return ""
