"""The benchmark's arithmetic: loads, readings, figures."""

import os
import time
from collections import Counter

import pytest

from hack.bench import measure, report
from hack.bench.runner import Result, Run
from hack.bench.scenario import (
    Contender,
    ScenarioError,
    Shape,
    check,
    contenders,
    in_turn,
    node_documents,
    parse_nodes,
    parse_shapes,
)
from kube.objects.names import POD_GROUP


def test_shapes_and_nodes_are_read():
    assert parse_shapes("4x500, 100x20") == (Shape(4, 500), Shape(100, 20))
    assert parse_nodes("5000,200,1000") == (200, 1000, 5000)
    for broken in ("4x0", "4", "", "4x5x6", "-1x5"):
        with pytest.raises(ScenarioError, match="expected GANGSxPODS"):
            parse_shapes(broken)
    for broken in ("", "0", "a", "5,"):
        with pytest.raises(ScenarioError, match="expected numbers"):
            parse_nodes(broken)


def test_a_load_that_cannot_fit_is_refused():
    check((125,), (Shape(4, 500),))  # 125 nodes of 16 CPUs hold 2,000 pods of one
    with pytest.raises(ScenarioError, match="4x500 is 2000 pods, 124 nodes hold 1984"):
        check((124, 1000), (Shape(4, 500),))


def test_one_stock_run_serves_every_shape_of_its_size():
    found = contenders(200, (Shape(4, 500), Shape(100, 20), Shape(2, 100)))
    assert [entrant.name for entrant in found] == ["stock", "stock", "muster 4x500", "muster 100x20", "muster 2x100"]
    assert [entrant.pods for entrant in found] == [2000, 200, 2000, 2000, 200]
    many = contenders(5000, (Shape(4, 500),))
    assert [entrant.name for entrant in many] == ["stock", "muster 4x500", "muster 4x500 sampled"]


def test_every_round_has_everybody_and_another_order():
    entrants = contenders(200, (Shape(4, 500), Shape(100, 20)))
    rounds = [in_turn(entrants, number) for number in range(4)]
    assert all(Counter(order) == Counter(entrants) for order in rounds)
    assert len({tuple(order) for order in rounds[:3]}) == 3


def test_gang_pods_belong_to_their_gang_and_stock_pods_to_none():
    gangs = Contender(6, Shape(2, 3), "muster")
    assert [group["spec"]["minMember"] for group in gangs.pod_groups()] == [3, 3]
    pods = list(gangs.pod_documents())
    assert [pod["metadata"]["labels"][POD_GROUP] for pod in pods] == ["gang-0"] * 3 + ["gang-1"] * 3
    assert {pod["spec"]["schedulerName"] for pod in pods} == {"muster"}
    stock = Contender(6)
    assert list(stock.pod_groups()) == []
    assert all(POD_GROUP not in pod["metadata"]["labels"] for pod in stock.pod_documents())
    assert [node["metadata"]["name"] for node in node_documents(3, 5)] == ["node-3", "node-4"]


def test_writes_are_counted_by_verb_and_target_and_reads_are_not():
    text = (
        "# TYPE apiserver_request_total counter\n"
        'apiserver_request_total{code="201",group="",resource="pods",subresource="binding",verb="POST"} 7\n'
        'apiserver_request_total{code="409",group="",resource="pods",subresource="binding",verb="POST"} 1\n'
        'apiserver_request_total{code="200",group="",resource="pods",subresource="",verb="LIST"} 9\n'
        'apiserver_request_total{code="201",group="events.k8s.io",resource="events",subresource="",verb="POST"} 2e+03\n'
        'apiserver_request_duration_seconds_count{resource="pods",subresource="",verb="POST"} 5\n'
    )
    assert measure.writes(text) == {"POST pods/binding": 8, "POST events": 2000}


def test_cpu_time_of_a_process():
    began, used = measure.cpu_seconds(os.getpid()), time.process_time()
    while time.process_time() - used < 0.1:
        pass
    assert measure.cpu_seconds(os.getpid()) - began >= 0.08
    assert measure.cpu_seconds(2**22 + 1) == 0.0


def run(seconds, extender=0.0):
    return Run(seconds, {"apiserver": 2.0, "extender": extender}, {"POST pods/binding": 100, "POST events": 100})


def test_the_ratio_is_the_median_of_each_rounds_own():
    stock, muster = Contender(100), Contender(100, Shape(1, 100), "muster")
    result = Result(10, {stock: [run(1.0), run(4.0), run(2.0)], muster: [run(2.0, 1.0), run(5.0, 1.0), run(2.0, 1.0)]})
    assert report.ratio(result, muster) == 0.8  # of 0.5, 0.8 and 1.0
    found = report.document([result], {"cores": 2})
    [of_stock, of_muster] = found["results"][0]["contenders"]
    assert (of_stock["seconds"], of_stock["pods_per_second"], of_stock["writes_per_pod"]) == (2.0, 50.0, 2.0)
    assert (of_muster["ratio_to_stock"], of_muster["gangs"]) == (0.8, "1x100")
    assert of_muster["cpu_ratio_to_stock"] == 0.667  # 2 of 2 + 1
    assert "ratio_to_stock" not in of_stock
    assert (
        "| 10 | muster 1x100 | 2.00 (2.0-5.0) | 50 | 0.80 | 0.67 | 20.00, 0.00, 0.00, 10.00 | 2.00 |"
        in report.table([result])
    )
