from typing import Any

import msgspec
import pytest

from kube.objects.node_predicates import (
    NOT_READY,
    NOT_SELECTED,
    UNSCHEDULABLE,
    NodeView,
    node_view,
    ports_conflict,
    tolerates,
    unfit_reason,
)
from kube.objects.nodes import Node, Taint
from kube.objects.pod_class import PodClass, template_class
from kube.objects.pod_constraints import HostPort
from kube.objects.pods import Toleration
from tests import samples


def pod(**spec: Any) -> PodClass:
    return template_class("ns", {"spec": {"containers": [], **spec}})


def node(
    labels: dict[str, str] | None = None, *, taints: Any = (), ready: str = "True", cordoned: bool = False
) -> NodeView:
    document = {
        "metadata": {"name": "n1", "labels": labels or {}},
        "spec": {"unschedulable": cordoned, "taints": list(taints)},
        "status": {
            "allocatable": {"cpu": "3920m", "memory": "16Gi", "pods": "110"},
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}],
        },
    }
    return node_view(msgspec.convert(document, Node))


def affinity(*terms: Any) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_a_plain_node_takes_a_plain_pod() -> None:
    assert node().allocatable == {"cpu": 3920, "memory": 16 << 30, "pods": 110}
    assert unfit_reason(pod(), node()) is None


def test_a_cordoned_node_takes_only_those_that_tolerate_it() -> None:
    assert unfit_reason(pod(), node(cordoned=True)) == UNSCHEDULABLE
    daemon = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
    assert unfit_reason(pod(tolerations=[daemon]), node(cordoned=True)) is None
    assert unfit_reason(pod(tolerations=[{"operator": "Exists"}]), node(cordoned=True)) is None


@pytest.mark.parametrize("ready", ["False", "Unknown", ""])
def test_a_node_that_is_not_ready_takes_only_those_that_tolerate_everything(ready: str) -> None:
    assert unfit_reason(pod(), node(ready=ready)) == NOT_READY
    assert unfit_reason(pod(tolerations=[{"operator": "Exists"}]), node(ready=ready)) is None


def test_a_node_that_never_reported_is_not_ready() -> None:
    assert not node_view(msgspec.convert({"metadata": {"name": "new"}}, Node)).ready


@pytest.mark.parametrize(
    ("toleration", "taint", "tolerated"),
    [
        (Toleration("k", "Equal", "v"), Taint("k", "v", "NoSchedule"), True),
        (Toleration("k", "", "v"), Taint("k", "v", "NoSchedule"), True),
        (Toleration("k", "Equal", "w"), Taint("k", "v", "NoSchedule"), False),
        (Toleration("k", "Exists"), Taint("k", "v", "NoExecute"), True),
        (Toleration("k", "Exists", "", "NoSchedule"), Taint("k", "v", "NoExecute"), False),
        (Toleration("", "Exists"), Taint("k", "v", "NoExecute"), True),
        (Toleration("", "Exists", "", "NoSchedule"), Taint("k", "v", "NoSchedule"), True),
        (Toleration("other", "Exists"), Taint("k", "v", "NoSchedule"), False),
        (Toleration("k", "Gt", "5"), Taint("k", "6", "NoSchedule"), True),
        (Toleration("k", "Gt", "5"), Taint("k", "5", "NoSchedule"), False),
        (Toleration("k", "Lt", "5"), Taint("k", "-6", "NoSchedule"), True),
        (Toleration("k", "Lt", "five"), Taint("k", "4", "NoSchedule"), False),
        (Toleration("k", "Sometimes", "v"), Taint("k", "v", "NoSchedule"), False),
    ],
)
def test_tolerations(toleration: Toleration, taint: Taint, tolerated: bool) -> None:
    assert tolerates([toleration], taint) is tolerated


def test_taints_block_unless_they_only_prefer() -> None:
    gpu = {"key": "gpu", "value": "yes"}
    assert unfit_reason(pod(), node(taints=[gpu | {"effect": "PreferNoSchedule"}])) is None
    for effect in ("NoSchedule", "NoExecute"):
        tainted = node(taints=[gpu | {"effect": effect}])
        assert unfit_reason(pod(), tainted) == "node(s) had untolerated taint {gpu: yes}"
        assert unfit_reason(pod(tolerations=[{"key": "gpu", "operator": "Exists"}]), tainted) is None


def test_every_taint_has_to_be_tolerated() -> None:
    both = node(taints=[{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}])
    assert unfit_reason(pod(tolerations=[{"key": "a", "operator": "Exists"}]), both) == (
        "node(s) had untolerated taint {b: }"
    )


def test_node_selector_needs_every_label() -> None:
    wants = pod(nodeSelector={"pool": "train", "gpu": "h100"})
    assert unfit_reason(wants, node({"pool": "train"})) == NOT_SELECTED
    assert unfit_reason(wants, node({"pool": "train", "gpu": "h100", "more": "x"})) is None


@pytest.mark.parametrize(
    ("term", "labels", "matches"),
    [
        (expression("k", "In", "a", "b"), {"k": "b"}, True),
        (expression("k", "In", "a", "b"), {"k": "c"}, False),
        (expression("k", "In", "a"), {}, False),
        (expression("k", "NotIn", "a"), {"k": "b"}, True),
        (expression("k", "NotIn", "a"), {"k": "a"}, False),
        (expression("k", "NotIn", "a"), {}, True),
        (expression("k", "Exists"), {"k": ""}, True),
        (expression("k", "Exists"), {}, False),
        (expression("k", "DoesNotExist"), {}, True),
        (expression("k", "DoesNotExist"), {"k": "x"}, False),
        (expression("k", "Gt", "534"), {"k": "535"}, True),
        (expression("k", "Gt", "534"), {"k": "534"}, False),
        (expression("k", "Gt", "534"), {"k": "v535"}, False),
        (expression("k", "Gt", "534"), {}, False),
        (expression("k", "Lt", "10"), {"k": "9"}, True),
        (expression("k", "Lt", "10"), {"k": "9.5"}, False),
        # Terms the API server would refuse select nothing (nodeaffinity.LazyErrorNodeSelector).
        (expression("k", "In"), {"k": "a"}, False),
        (expression("k", "Gt", "1", "2"), {"k": "3"}, False),
        (expression("k", "Near", "a"), {"k": "a"}, False),
        ({}, {}, False),
    ],
)
def test_node_affinity_operators(term: Any, labels: dict[str, str], matches: bool) -> None:
    verdict = unfit_reason(pod(affinity=affinity(term)), node(labels))
    assert verdict == (None if matches else NOT_SELECTED)


def test_terms_are_alternatives_and_expressions_are_not() -> None:
    big = {"matchExpressions": [*expression("gpu", "In", "big")["matchExpressions"],
                                *expression("driver", "Gt", "534")["matchExpressions"]]}  # fmt: skip
    wants = pod(affinity=affinity(big, expression("pool", "In", "reserved")))
    assert unfit_reason(wants, node({"gpu": "big", "driver": "535"})) is None
    assert unfit_reason(wants, node({"gpu": "big", "driver": "1"})) == NOT_SELECTED
    assert unfit_reason(wants, node({"pool": "reserved"})) is None
    assert unfit_reason(pod(affinity=affinity()), node()) == NOT_SELECTED


def test_fields_name_the_node() -> None:
    def field(operator: str, name: str) -> dict[str, Any]:
        return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]}

    assert unfit_reason(pod(affinity=affinity(field("In", "n1"))), node()) is None
    assert unfit_reason(pod(affinity=affinity(field("In", "n2"))), node()) == NOT_SELECTED
    assert unfit_reason(pod(affinity=affinity(field("NotIn", "n1"))), node()) == NOT_SELECTED
    both = field("In", "n1") | expression("pool", "Exists")
    assert unfit_reason(pod(affinity=affinity(both)), node()) == NOT_SELECTED
    assert unfit_reason(pod(affinity=affinity(both)), node({"pool": "x"})) is None


def test_selector_and_affinity_must_both_agree() -> None:
    wants = pod(nodeSelector={"a": "1"}, affinity=affinity(expression("b", "Exists")))
    assert unfit_reason(wants, node({"a": "1"})) == NOT_SELECTED
    assert unfit_reason(wants, node({"a": "1", "b": "2"})) is None


def test_the_gpu_sample_goes_where_its_alternatives_say() -> None:
    roles = samples.job("thirty-two-pods-decimal-memory.yaml")["spec"]["pytorchReplicaSpecs"]
    worker = template_class("team-a", roles["Worker"]["template"])
    taints = [
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        {"key": "example.com/reserved", "value": "team-a", "effect": "NoExecute"},
    ]
    model = {"example.com/gpu-model": "big96", "example.com/driver-major": "535"}
    assert unfit_reason(worker, node(model, taints=taints)) is None
    assert unfit_reason(worker, node(model | {"example.com/driver-major": "534"}, taints=taints)) == NOT_SELECTED
    assert unfit_reason(worker, node({"example.com/pool": "reserved"}, taints=taints)) is None
    sick = {"example.com/pool": "reserved", "example.com/node-health": "warn"}
    assert unfit_reason(worker, node(sick, taints=taints)) == NOT_SELECTED
    taints[1]["value"] = "team-b"
    assert unfit_reason(worker, node(model, taints=taints)) == (
        "node(s) had untolerated taint {example.com/reserved: team-b}"
    )


@pytest.mark.parametrize(
    ("wanted", "taken", "conflict"),
    [
        (HostPort("0.0.0.0", "TCP", 80), HostPort("0.0.0.0", "TCP", 80), True),
        (HostPort("0.0.0.0", "TCP", 80), HostPort("0.0.0.0", "UDP", 80), False),
        (HostPort("0.0.0.0", "TCP", 80), HostPort("0.0.0.0", "TCP", 81), False),
        (HostPort("10.0.0.1", "TCP", 80), HostPort("10.0.0.2", "TCP", 80), False),
        (HostPort("10.0.0.1", "TCP", 80), HostPort("10.0.0.1", "TCP", 80), True),
        (HostPort("0.0.0.0", "TCP", 80), HostPort("10.0.0.2", "TCP", 80), True),
        (HostPort("10.0.0.1", "TCP", 80), HostPort("0.0.0.0", "TCP", 80), True),
    ],
)
def test_host_ports_conflict_per_address_and_protocol(wanted: HostPort, taken: HostPort, conflict: bool) -> None:
    assert ports_conflict([wanted], [taken]) is conflict
    assert ports_conflict([], [taken]) is False


def test_a_heartbeat_changes_no_verdict_but_a_label_does() -> None:
    assert node({"a": "1"}).same_place(node({"a": "1"}))
    assert not node({"a": "1"}).same_place(node({"a": "2"}))
    assert not node().same_place(node(cordoned=True))
