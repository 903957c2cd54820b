import gc
from typing import Any

import pytest

from kube.objects.pod_class import PodClass, plain_class, template_class, template_classes
from kube.objects.pod_constraints import HostPort
from kube.objects.pod_requests import PodTemplateError
from tests import samples


def template(labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "pytorch", "resources": {"requests": spec.pop("requests", {"cpu": "1"})}}
    container.update(spec.pop("container", {}))
    return {"metadata": {"labels": labels or {}}, "spec": {"containers": [container], **spec}}


def anti_affinity(**labels: str) -> dict[str, Any]:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def class_of(namespace: str = "ns", **kwargs: Any) -> PodClass:
    return template_class(namespace, template(**kwargs))


def test_pods_that_ask_for_the_same_are_one_object() -> None:
    assert class_of(requests={"cpu": "1000m", "memory": "1Gi"}) is class_of(requests={"memory": "1024Mi", "cpu": 1})


@pytest.mark.parametrize(
    "different",
    [
        {"requests": {"cpu": "2"}},
        {"nodeSelector": {"pool": "a"}},
        {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
        {"affinity": anti_affinity(app="x")},
        {"priority": 5},
        {"container": {"ports": [{"containerPort": 1, "hostPort": 1}]}},
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "labelSelector": {}}]},
        {"overhead": {"cpu": "1m"}},
    ],
)
def test_whatever_placement_reads_tells_classes_apart(different: dict[str, Any]) -> None:
    assert class_of(**different) is not class_of()
    assert class_of(**different) is class_of(**different)


def test_what_places_nothing_does_not() -> None:
    preferred = [{"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]
    soft = {"maxSkew": 1, "topologyKey": "zone", "labelSelector": {}, "whenUnsatisfiable": "ScheduleAnyway"}
    assert (
        class_of(
            schedulerName="muster",
            affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}},
            topologySpreadConstraints=[soft],
            container={"ports": [{"containerPort": 23456}], "image": "other"},
        )
        is class_of()
    )


def test_tolerations_are_a_set_and_their_seconds_place_nothing() -> None:
    a, b = {"key": "a", "operator": "Exists"}, {"key": "b", "value": "x"}
    assert class_of(tolerations=[a, b]) is class_of(
        tolerations=[b | {"operator": "Equal"}, a | {"tolerationSeconds": 9}]
    )


def test_labels_that_only_tell_siblings_apart_do_not_split_a_class() -> None:
    labels = [{"app": "x", "training.kubeflow.org/replica-index": str(i)} for i in range(2)]
    assert class_of(labels=labels[0]) is class_of(labels=labels[1])
    # Its own rule looks at "app": that label is kept, the index still is not.
    spread = anti_affinity(app="x")
    assert class_of(labels=labels[0], affinity=spread) is class_of(labels=labels[1], affinity=spread)
    assert class_of(labels=labels[0], affinity=spread).subject == ("ns", (("app", "x"),))
    # Unless a rule names the index.
    by_index = anti_affinity(**{"training.kubeflow.org/replica-index": "0"})
    assert class_of(labels=labels[0], affinity=by_index) is not class_of(labels=labels[1], affinity=by_index)


def test_roles_keep_the_labels_that_rules_of_their_siblings_look_at() -> None:
    master = template(labels={"part": "master", "note": "m"})
    worker = template(labels={"part": "worker", "note": "w"}, affinity=anti_affinity(part="master"))
    classes = template_classes("ns", {"master": master, "worker": worker})
    assert classes["master"].subject == ("ns", (("part", "master"),))
    assert classes["worker"].subject == ("ns", (("part", "worker"),))
    assert classes["worker"].couples
    assert not classes["master"].couples


def test_a_bad_template_is_said_with_its_role() -> None:
    broken = template(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}})
    with pytest.raises(PodTemplateError, match="worker: pod affinity: topologyKey is missing"):
        template_classes("ns", {"master": template(), "worker": broken})
    with pytest.raises(PodTemplateError, match="worker: cpu: quantity '1 1'"):
        template_classes("ns", {"worker": template(requests={"cpu": "1 1"})})


def test_a_pod_takes_a_pod_slot_beside_what_it_asks_for() -> None:
    cls = class_of(requests={"cpu": "1", "nvidia.com/gpu": 2})
    assert cls.requests == {"cpu": 1000, "nvidia.com/gpu": 2}
    assert cls.charge == {"cpu": 1000, "nvidia.com/gpu": 2, "pods": 1}
    assert plain_class({"cpu": 1000, "nvidia.com/gpu": 2}, namespace="ns") is cls


def test_host_ports_of_host_network_templates_are_the_container_ports() -> None:
    roles = samples.job("limits-only-gpu.yaml")["spec"]["pytorchReplicaSpecs"]
    del roles["Worker"]["template"]["spec"]["containers"][0]["ports"][0]["hostPort"]
    for role in roles.values():
        assert template_class("team-b", role["template"]).host_ports == (HostPort("0.0.0.0", "TCP", 29500),)


def test_only_ports_that_last_are_taken() -> None:
    step = {"name": "step", "ports": [{"hostPort": 1, "containerPort": 1}]}
    sidecar = {
        "name": "side",
        "restartPolicy": "Always",
        "ports": [{"hostPort": 2, "protocol": "UDP", "hostIP": "10.0.0.1"}],
    }
    assert class_of(initContainers=[step, sidecar]).host_ports == (HostPort("10.0.0.1", "UDP", 2),)


def test_match_label_keys_become_part_of_the_selector() -> None:
    term = {
        "topologyKey": "zone",
        "labelSelector": {"matchLabels": {"app": "x"}},
        "matchLabelKeys": ["rev", "absent"],
        "mismatchLabelKeys": ["tenant"],
    }
    cls = class_of(
        labels={"app": "x", "rev": "7", "tenant": "t"},
        affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
    )
    [parsed] = cls.affinity
    assert parsed.matches("ns", {"app": "x", "rev": "7", "tenant": "other"}, {})
    assert not parsed.matches("ns", {"app": "x", "rev": "8", "tenant": "other"}, {})
    assert not parsed.matches("ns", {"app": "x", "rev": "7", "tenant": "t"}, {})
    assert not parsed.matches("elsewhere", {"app": "x", "rev": "7", "tenant": "other"}, {})


def test_classes_nobody_refers_to_are_forgotten() -> None:
    before = sum(isinstance(each, PodClass) for each in gc.get_objects())
    for cpu in range(1000, 1100):
        class_of(requests={"cpu": cpu})
    gc.collect()
    assert sum(isinstance(each, PodClass) for each in gc.get_objects()) <= before + 1
