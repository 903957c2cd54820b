"""status.root of the ElasticQuotaTree: what each node uses and asks for, as its dashboards read it. Pure."""

from collections.abc import Iterable

from dispatcher.quota import Ask, Ledger
from dispatcher.quota_tree import NodePath, ancestors
from kube.objects.meta import Json
from kube.objects.resources import Resources, add_into, format_resources


def tree_status(ledger: Ledger, waiting: Iterable[Ask]) -> Json | None:
    """{name, namespaces, used, request, children}: `used` is charged at and below the node, `request` is that and what
    waits there. None without a tree."""
    nodes = ledger.tree.nodes
    if not nodes:
        return None
    asked: dict[NodePath, Resources] = {}
    for ask in waiting:
        for path in ancestors(ask.path):
            add_into(asked.setdefault(path, {}), ask.amounts)
    shown: dict[NodePath, Json] = {}
    for path, node in reversed(nodes.items()):
        used = ledger.used(path)
        request = dict(used)
        add_into(request, asked.get(path, {}))
        shown[path] = {"name": node.name, "used": format_resources(used), "request": format_resources(request)}
        if node.namespaces:
            shown[path]["namespaces"] = list(node.namespaces)
        if node.children:
            shown[path]["children"] = [shown[child] for child in node.children]
    return shown[next(iter(nodes))]
