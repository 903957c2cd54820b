from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kube.objects.capacity import NodeShape
from kube.objects.node_predicates import NodeView
from kube.objects.nodes import Taint
from kube.objects.pod_class import PodClass, plain_class, template_class, template_classes
from kube.objects.resources import fit_count, fits, parse_resources
from kube.objects.shape_fit import NO_ROOM, Demand, largest_fit
from kube.objects.shapes import node_shapes, quantise, telling_label_keys
from tests import samples

GI = 1 << 30
ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"


def node(name: str = "n", *, ready: Any = True, cordoned: Any = False, taints: Any = (), **labels: str) -> NodeView:
    own = {HOST: name, **labels}
    return NodeView(name, own, tuple(taints), unschedulable=cordoned, ready=ready, allocatable={})


def test_nodes_that_look_alike_are_one_shape() -> None:
    free = {"cpu": 7950, "memory": 31 * GI + 12345, "nvidia.com/gpu": 3, "pods": 12}
    nearly = {"cpu": 7999, "memory": 31 * GI, "nvidia.com/gpu": 3, "pods": 12}
    shapes, left_out = node_shapes([(node("a"), free), (node("b"), nearly)])
    assert shapes == [NodeShape(nodes=2, free={"cpu": "7900m", "memory": "31Gi", "nvidia.com/gpu": "3", "pods": "12"})]
    assert left_out == 0


def test_devices_labels_and_taints_that_matter_tell_shapes_apart() -> None:
    free = {"cpu": 1000, "pods": 1}
    gpu = Taint("gpu", "yes", "NoSchedule")
    shapes, _ = node_shapes(
        [
            (node("a", pool="x", **{ZONE: "z1"}), free),
            (node("b", pool="y", **{ZONE: "z1"}), free),
            (node("c", pool="y", **{ZONE: "z2"}), free),
            (node("d", pool="y", taints=[gpu], **{ZONE: "z2"}), free),
            (node("e", pool="y", taints=[gpu], other="no matter", **{ZONE: "z2"}), free),
        ],
        ["pool", HOST],
    )
    told = {(shape.nodes, shape.labels.get("pool"), shape.labels[ZONE], len(shape.taints)) for shape in shapes}
    assert told == {(1, "x", "z1", 0), (1, "y", "z1", 0), (1, "y", "z2", 0), (2, "y", "z2", 1)}
    assert all(HOST not in shape.labels and "other" not in shape.labels for shape in shapes)


def test_nodes_that_take_nothing_are_in_no_shape() -> None:
    free = {"cpu": 1000, "pods": 5}
    shapes, left_out = node_shapes(
        [
            (node("cordoned", cordoned=True), free),
            (node("dead", ready=False), free),
            (node("full"), {"cpu": 1000, "pods": 0}),
            (node("over"), {"cpu": 1000, "pods": -2}),
        ]
    )
    assert (shapes, left_out) == ([], 0)


def test_an_overcommitted_resource_is_none() -> None:
    [shape], _ = node_shapes([(node(), {"cpu": -500, "memory": GI, "pods": 3})])
    assert shape.free == {"memory": "1Gi", "pods": "3"}


def test_the_largest_shapes_are_kept_and_the_rest_counted() -> None:
    nodes = [(node(f"n{size}"), {"cpu": size * 100, "pods": 1}) for size in range(1, 301)]
    shapes, left_out = node_shapes(nodes)
    assert (len(shapes), left_out) == (256, 44)
    assert shapes[0].free["cpu"] == "30"
    assert min(parse_resources(shape.free)["cpu"] for shape in shapes) == 4500


def test_a_few_devices_outweigh_much_cpu() -> None:
    nodes = [(node(f"c{size}"), {"cpu": size * 100, "pods": 1}) for size in range(1, 11)]
    nodes.append((node("g"), {"cpu": 100, "nvidia.com/gpu": 1, "pods": 1}))
    shapes, left_out = node_shapes(nodes, limit=1)
    assert [shape.free for shape in shapes] == [{"cpu": "100m", "nvidia.com/gpu": "1", "pods": "1"}]
    assert left_out == 10


def test_labels_that_name_nodes_are_not_telling() -> None:
    nodes = [
        node(f"n{i}", pool="ab"[i % 2], serial=str(i), **{"feature.node.kubernetes.io/avx": "true"}) for i in range(40)
    ]
    assert telling_label_keys(nodes) == {"pool"}


vectors = st.fixed_dictionaries(
    {
        "cpu": st.integers(-1000, 100_000),
        "memory": st.integers(-GI, 100 * GI),
        "nvidia.com/gpu": st.integers(0, 8),
        "pods": st.integers(-1, 300),
    }
)


@given(vectors)
def test_a_shape_never_promises_room_that_is_not_there(free: dict[str, int]) -> None:
    rounded = quantise(free)
    assert fits(rounded, free)
    assert all(units > 0 for units in rounded.values())
    assert quantise(rounded) == rounded


# --- the fit ---


def gpu_shape(nodes: int, gpus: int, cpu: str = "64", **labels: str) -> NodeShape:
    return NodeShape(nodes=nodes, free={"cpu": cpu, "nvidia.com/gpu": str(gpus), "pods": "16"}, labels=labels)


def cpu_shape(nodes: int, cpu: int, **labels: str) -> NodeShape:
    return NodeShape(nodes=nodes, free={"cpu": str(cpu), "pods": "16"}, labels=labels)


def gang(name: str) -> list[Demand]:
    job = samples.job(name)
    specs = job["spec"]["pytorchReplicaSpecs"]
    classes = template_classes(job["metadata"]["namespace"], {role: spec["template"] for role, spec in specs.items()})
    return [Demand(classes[role], specs[role].get("replicas", 1), role.lower()) for role in specs]


def test_seven_of_nine() -> None:
    # Three nodes with 5 GPUs hold two pods of 2 GPUs each, one node with 3 holds one more.
    pods = Demand(plain_class({"cpu": 1000, "nvidia.com/gpu": 2}), 9)
    fit = largest_fit([pods], [gpu_shape(3, 5), gpu_shape(1, 3), cpu_shape(50, 64)])
    assert (fit.pods, fit.wanted, fit.fits) == (7, 9, False)
    assert fit.text == "largest fit 7 of 9 pods (nvidia.com/gpu)"
    assert fit.short == {"nvidia.com/gpu": 4}


def test_enough_as_a_sum_is_not_enough() -> None:
    # 8 cpu free in all, but 4 on each of two nodes: no pod of 5 fits.
    fit = largest_fit([Demand(plain_class({"cpu": 5000}), 1)], [cpu_shape(2, 4)])
    assert fit.text == "largest fit 0 of 1 pods (cpu)"


def test_pod_slots_run_out_too() -> None:
    shape = NodeShape(nodes=2, free={"cpu": "64", "pods": "1"})
    fit = largest_fit([Demand(plain_class({"cpu": 100}), 3)], [shape])
    assert fit.text == "largest fit 2 of 3 pods (pods)"


def test_unlike_roles_find_their_own_nodes() -> None:
    master, worker = plain_class({"cpu": 4000}), plain_class({"cpu": 4000, "nvidia.com/gpu": 8})
    shapes = [gpu_shape(2, 8, cpu="4"), cpu_shape(1, 4)]
    fit = largest_fit([Demand(master, 1, "master"), Demand(worker, 2, "worker")], shapes)
    assert fit.fits
    assert fit.placed == (1, 2)


def test_another_order_is_tried_before_a_gang_is_refused() -> None:
    # Big ones first would spoil it: 3+3 and 2+2+2 fill two nodes of 6 in one way only.
    fit = largest_fit([Demand(plain_class({"cpu": 3000}), 2), Demand(plain_class({"cpu": 2000}), 3)], [cpu_shape(2, 6)])
    assert fit.fits


def test_what_was_promised_to_others_is_taken_off_first() -> None:
    pod = plain_class({"cpu": 1000, "nvidia.com/gpu": 4})
    fit = largest_fit([Demand(pod, 4)], [gpu_shape(2, 8)], promised=[Demand(pod, 1)])
    assert fit.text == "largest fit 3 of 4 pods (nvidia.com/gpu)"


def test_no_report_of_room_at_all() -> None:
    assert largest_fit([Demand(plain_class({"cpu": 1}), 1)], []).text == f"largest fit 0 of 1 pods ({NO_ROOM})"
    assert largest_fit([], []).fits


def test_selectors_and_taints_keep_shapes_out_and_say_so() -> None:
    wanting = template_class("ns", {"spec": {"containers": [], "nodeSelector": {"pool": "train"}}})
    fit = largest_fit([Demand(wanting, 1)], [cpu_shape(1, 4, pool="web")])
    assert fit.text == "largest fit 0 of 1 pods (node(s) didn't match Pod's node affinity/selector)"
    tainted = NodeShape(nodes=1, free={"cpu": "4", "pods": "5"}, taints=[Taint("gpu", "", "NoSchedule")])
    fit = largest_fit([Demand(plain_class({"cpu": 1}), 1)], [tainted])
    assert fit.reason == "node(s) had untolerated taint {gpu: }"


def test_demands_on_what_shapes_do_not_carry_are_taken_as_met() -> None:
    pinned = template_class("ns", {"spec": {"containers": [], "nodeSelector": {HOST: "n7", "serial": "1"}}})
    assert not largest_fit([Demand(pinned, 1)], [cpu_shape(1, 4)]).fits
    assert largest_fit([Demand(pinned, 1)], [cpu_shape(1, 4)], unknown_label_keys=(HOST, "serial")).fits


def test_a_fixed_host_port_needs_a_node_for_each_pod() -> None:
    demands = gang("limits-only-gpu.yaml")
    assert largest_fit(demands, [gpu_shape(4, 8)]).fits
    fit = largest_fit(demands, [gpu_shape(3, 8)])
    assert (fit.pods, fit.wanted) == (3, 4)
    assert fit.reason == "node(s) didn't have free ports for the requested pod ports"


def test_pods_that_must_share_a_zone_are_counted_in_one_zone() -> None:
    [workers] = gang("elastic-etcd-companions.yaml")
    pool = {"example.com/pool": "train"}

    def shape(nodes: int, zone: str) -> NodeShape:
        room = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "4", "pods": "9"}
        return NodeShape(nodes=nodes, free=room, labels=pool | {ZONE: zone})

    # Two pods to a node: zones of 1 and 2 nodes hold 2 and 4 of the 6.
    fit = largest_fit([workers], [shape(1, "a"), shape(2, "b")])
    assert fit.text == "largest fit 4 of 6 pods (nvidia.com/gpu)"
    assert largest_fit([workers], [shape(1, "a"), shape(3, "b")]).fits


def test_pods_that_must_share_a_node_are_counted_on_one_node() -> None:
    near = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "x"}}}
    together = template_class(
        "ns",
        {
            "metadata": {"labels": {"app": "x"}},
            "spec": {
                "containers": [{"resources": {"requests": {"cpu": "2"}}}],
                "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}},
            },
        },
    )
    fit = largest_fit([Demand(together, 5)], [cpu_shape(10, 4), cpu_shape(1, 9)])
    assert (fit.pods, fit.short) == (4, {"cpu": 2000})


def test_pods_that_shun_each_others_zone_take_one_zone_each() -> None:
    apart = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "x"}}}
    loner = template_class(
        "ns",
        {
            "metadata": {"labels": {"app": "x"}},
            "spec": {
                "containers": [{"resources": {"requests": {"cpu": "1"}}}],
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
            },
        },
    )
    shapes = [cpu_shape(5, 4, **{ZONE: "a"}), cpu_shape(5, 8, **{ZONE: "a"}), cpu_shape(5, 4, **{ZONE: "b"})]
    assert largest_fit([Demand(loner, 3)], shapes).pods == 2


one_class = st.fixed_dictionaries({"cpu": st.integers(1, 40)}, optional={"nvidia.com/gpu": st.integers(1, 4)})
small_shapes = st.lists(
    st.builds(
        lambda nodes, cpu, gpus, pods: NodeShape(
            nodes=nodes, free={"cpu": f"{cpu}m", "nvidia.com/gpu": str(gpus), "pods": str(pods)}
        ),
        st.integers(1, 5),
        st.integers(0, 100),
        st.integers(0, 8),
        st.integers(1, 4),
    ),
    max_size=5,
)


@given(one_class, st.integers(1, 30), small_shapes)
def test_one_class_is_counted_exactly(request: dict[str, int], count: int, shapes: list[NodeShape]) -> None:
    cls = plain_class(request)
    places = sum(shape.nodes * fit_count(cls.charge, parse_resources(shape.free)) for shape in shapes)
    fit = largest_fit([Demand(cls, count)], shapes)
    assert fit.pods == min(count, places)
    assert bool(fit.short or fit.reason) == (not fit.fits)


def packings(demands: list[tuple[PodClass, int]], bins: list[dict[str, int]]) -> int:
    """The most pods that go in at once, by trying everything."""
    best = 0
    for index, (cls, count) in enumerate(demands):
        if not count:
            continue
        fewer = [*demands[:index], (cls, count - 1), *demands[index + 1 :]]
        for at, free in enumerate(bins):
            if fits(cls.charge, free):
                rest = {name: units - cls.charge.get(name, 0) for name, units in free.items()}
                best = max(best, 1 + packings(fewer, [*bins[:at], rest, *bins[at + 1 :]]))
        # The first class still wanted is either placed now or given up.
        best = max(best, packings([*demands[:index], (cls, 0), *demands[index + 1 :]], bins))
        break
    return best


tiny_shapes = st.lists(
    st.builds(
        lambda nodes, cpu, gpus: NodeShape(
            nodes=nodes, free={"cpu": f"{cpu}m", "nvidia.com/gpu": str(gpus), "pods": "3"}
        ),
        st.integers(1, 2),
        st.integers(1, 60),
        st.integers(0, 4),
    ),
    max_size=2,
)


@given(one_class, one_class, st.integers(0, 2), st.integers(0, 2), tiny_shapes)
def test_two_classes_are_never_promised_more_than_there_is_and_rarely_less(
    first: dict[str, int], second: dict[str, int], firsts: int, seconds: int, shapes: list[NodeShape]
) -> None:
    demands = [(plain_class(first), firsts), (plain_class(second), seconds)]
    bins = [parse_resources(shape.free) for shape in shapes for _ in range(shape.nodes)]
    most = packings(demands, bins)
    fit = largest_fit([Demand(cls, count) for cls, count in demands], shapes)
    assert fit.pods <= most
    assert fit.pods >= most - 1
