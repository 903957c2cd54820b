import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.objects.pod_requests import PodTemplateError, pod_request, template_request
from kube.objects.pods import Container, ContainerStatus, PodCondition, PodSpec, PodStatus, ResourceRequirements
from kube.objects.quantity import QuantityError
from kube.objects.resources import Resources, add, fits, maximum, scale
from tests import samples

VALID = sorted(name for name, expected in samples.EXPECTED.items() if expected["valid"])


@pytest.mark.parametrize("name", VALID)
def test_samples_add_up_to_the_last_byte(name: str) -> None:
    expected = samples.EXPECTED[name]
    replica_specs = {key.lower(): spec for key, spec in samples.job(name)["spec"]["pytorchReplicaSpecs"].items()}
    assert sorted(replica_specs) == sorted(role["name"] for role in expected["roles"])
    total: Resources = {}
    for role in expected["roles"]:
        spec = replica_specs[role["name"]]
        request = template_request(spec["template"])
        assert request == role["pod_request"]
        assert spec.get("replicas", 1) == role["replicas"]
        total = add(total, scale(request, role["replicas"]))
    assert total == expected["total_request"]


def asking(name: Any = "", restart: Any = None, limits: Any = None, **requests: Any) -> Container:
    return Container(
        name=name, restart_policy=restart, resources=ResourceRequirements(requests=requests, limits=limits)
    )


def test_a_limit_counts_per_key_where_no_request_is_beside_it() -> None:
    # trainer's own minResources loses the GPU here: requests{cpu} with limits{gpu}.
    spec = PodSpec(containers=[asking(cpu="500m", limits={"cpu": "4", "nvidia.com/gpu": "1"})])
    assert pod_request(spec) == {"cpu": 500, "nvidia.com/gpu": 1}


def test_a_request_of_zero_is_a_request_and_hides_the_limit() -> None:
    spec = PodSpec(containers=[asking(cpu=0, limits={"cpu": "4"})])
    assert pod_request(spec) == {}


def test_a_null_limit_is_no_limit() -> None:
    template = {"spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": None, "memory": "1Gi"}}}]}}
    assert template_request(template) == {"memory": 1 << 30}


def test_the_init_container_of_the_training_operator_is_a_floor() -> None:
    init = asking(cpu="50m", memory="10Mi", limits={"cpu": "100m", "memory": "20Mi"})
    assert pod_request(PodSpec(containers=[asking(cpu="10m")], init_containers=[init])) == {
        "cpu": 50,
        "memory": 10 << 20,
    }


def test_sidecars_run_beside_later_init_steps_and_beside_the_containers() -> None:
    # KEP-753: max(3 [first], 1+2 [second beside sidecar], 1+1 [sidecar + container]) = 3; memory 4 + 1.
    spec = PodSpec(
        init_containers=[asking(cpu=3), asking(restart="Always", cpu=1, memory=1), asking(cpu=2)],
        containers=[asking(cpu=1, memory=4)],
    )
    assert pod_request(spec) == {"cpu": 3000, "memory": 5}


def test_an_init_step_before_the_sidecar_does_not_pay_for_it() -> None:
    spec = PodSpec(init_containers=[asking(cpu=3), asking(restart="Always", cpu=1)], containers=[asking(cpu=1)])
    assert pod_request(spec) == {"cpu": 3000}


def test_each_quantity_is_rounded_up_to_thousandths_and_the_sum_to_whole_units() -> None:
    # The API server does the former when it takes a pod in, kube-scheduler the latter.
    spec = PodSpec(containers=[asking(cpu="0.0004", memory="0.4"), asking(cpu="0.0004", memory="0.4")])
    assert pod_request(spec) == {"cpu": 2, "memory": 1}


def test_overhead_comes_on_top_of_everything() -> None:
    spec = PodSpec(
        init_containers=[asking(cpu=5)], containers=[asking(cpu=1)], overhead={"cpu": "250m", "memory": "1Ki"}
    )
    assert pod_request(spec) == {"cpu": 5250, "memory": 1024}


def test_pod_level_requests_stand_for_the_containers_sum() -> None:
    spec = PodSpec(
        containers=[asking(cpu=1, memory=100, **{"nvidia.com/gpu": 1}), asking(cpu=1)],
        resources=ResourceRequirements(requests={"cpu": 3, "nvidia.com/gpu": 7}),
        overhead={"cpu": 1},
    )
    # KEP-2837: only cpu, memory and huge pages may be given for the pod.
    assert pod_request(spec) == {"cpu": 4000, "memory": 100, "nvidia.com/gpu": 1}


def test_a_pod_level_limit_is_the_request_only_where_no_container_asks() -> None:
    spec = PodSpec(
        containers=[asking(cpu=1)],
        resources=ResourceRequirements(limits={"cpu": 4, "memory": "1Gi", "hugepages-2Mi": "4Mi"}),
    )
    assert pod_request(spec) == {"cpu": 1000, "memory": 1 << 30, "hugepages-2Mi": 4 << 20}


def running(allocated: Any, actual: Any, *conditions: PodCondition) -> PodStatus:
    state = ContainerStatus("a", allocated_resources=allocated, resources=ResourceRequirements(requests=actual))
    return PodStatus(container_statuses=[state], conditions=list(conditions))


def test_while_a_pod_shrinks_in_place_the_larger_size_still_counts() -> None:
    spec = PodSpec(containers=[asking("a", cpu=1)])
    assert pod_request(spec) == {"cpu": 1000}
    assert pod_request(spec, running({"cpu": 3}, {"cpu": 4})) == {"cpu": 4000}
    assert pod_request(spec, running({"cpu": 3}, {"cpu": 2})) == {"cpu": 3000}


def test_while_a_pod_grows_in_place_the_wish_counts_unless_the_node_cannot_do_it() -> None:
    spec = PodSpec(containers=[asking("a", cpu=8)])
    deferred = PodCondition("PodResizePending", "True", "Deferred")
    infeasible = PodCondition("PodResizePending", "True", "Infeasible")
    assert pod_request(spec, running({"cpu": 2}, {"cpu": 2}, deferred)) == {"cpu": 8000}
    assert pod_request(spec, running({"cpu": 2}, {"cpu": 2}, infeasible)) == {"cpu": 2000}


def test_sidecars_are_resized_too_but_ended_init_steps_are_not() -> None:
    spec = PodSpec(init_containers=[asking("side", "Always", cpu=1), asking("step", cpu=1)], containers=[])
    held = [ContainerStatus(name, resources=ResourceRequirements(requests={"cpu": 5})) for name in ("side", "step")]
    assert pod_request(spec, PodStatus(init_container_statuses=held)) == {"cpu": 6000}


def test_pod_level_resizes_count_like_those_of_containers() -> None:
    spec = PodSpec(containers=[], resources=ResourceRequirements(requests={"cpu": 1}))
    status = PodStatus(resources=ResourceRequirements(requests={"cpu": 2}), allocated_resources={"cpu": 3})
    assert pod_request(spec, status) == {"cpu": 3000}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({}, "no spec"),
        ({"spec": []}, "no spec"),
        ({"spec": {"containers": 3}}, r"not a pod spec.*\$\.containers"),
        ({"spec": {"containers": [{"resources": {"requests": {"cpu": []}}}]}}, "not a pod spec"),
    ],
)
def test_what_is_no_pod_template_is_said_with_its_place(template: Any, message: str) -> None:
    with pytest.raises(PodTemplateError, match=message):
        template_request(template)


def test_a_bad_quantity_is_said_with_its_resource() -> None:
    with pytest.raises(QuantityError, match="memory: quantity '2 Gi'"):
        template_request({"spec": {"containers": [{"resources": {"requests": {"memory": "2 Gi"}}}]}})


amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.integers(0, 20), max_size=3)
containers = st.lists(st.builds(lambda r: asking(**r), amounts), max_size=4)
init_steps = st.lists(
    st.builds(lambda r, s: asking(restart="Always" if s else None, **r), amounts, st.booleans()), max_size=4
)


def by_hand(spec: PodSpec) -> Resources:
    """The rule told in time: at each moment of the pod's life, what runs then."""

    def sum_of(running: list[Container]) -> Resources:
        total: Resources = {}
        for container in running:
            assert container.resources is not None
            wanted = container.resources.requests or {}
            total = add(total, {k: int(v or 0) * (1000 if k == "cpu" else 1) for k, v in wanted.items()})
        return total

    sidecars: list[Container] = []
    moments = []
    for container in spec.init_containers or []:
        moments.append(sum_of([*sidecars, container]))
        if container.restart_policy == "Always":
            sidecars.append(container)
    moments.append(sum_of([*sidecars, *(spec.containers or [])]))
    peak: Resources = {}
    for moment in moments:
        peak = maximum(peak, moment)
    return peak


@given(containers, init_steps)
def test_a_pod_asks_for_the_most_it_runs_at_any_moment(main: list[Container], init: list[Container]) -> None:
    spec = PodSpec(containers=main, init_containers=init)
    assert pod_request(spec) == by_hand(spec)


@given(containers, init_steps, amounts)
def test_more_containers_never_ask_for_less(main: list[Container], init: list[Container], more: dict[str, int]) -> None:
    before = pod_request(PodSpec(containers=main, init_containers=init))
    for bigger in (
        PodSpec(containers=[*main, asking(**more)], init_containers=init),
        PodSpec(containers=main, init_containers=[*init, asking(**more)]),
        PodSpec(containers=main, init_containers=[asking(restart="Always", **more), *init]),
    ):
        assert fits(before, pod_request(bigger))


@given(containers)
def test_the_order_of_containers_does_not_matter(main: list[Container]) -> None:
    requests = [pod_request(PodSpec(containers=list(order))) for order in itertools.permutations(main)]
    assert all(request == requests[0] for request in requests)
