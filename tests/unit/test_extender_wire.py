"""Wire format golden tests: JSON as kube-scheduler writes and reads it (kube-scheduler extender/v1 types_test.go)."""

import json

import msgspec
import pytest

from extender import wire

POD = (
    '{"metadata":{"name":"p","namespace":"ns","uid":"u","creationTimestamp":null},'
    '"spec":{"containers":null},"status":{}}'
)


def test_filter_request_with_names():
    args = wire.decode_filter(f'{{"Pod":{POD},"Nodes":null,"NodeNames":["n1","n2"]}}'.encode())
    assert args.pod.metadata.uid == "u"
    assert args.pod.spec.containers is None
    assert args.offered() == ["n1", "n2"]
    assert args.nodes is None


def test_filter_request_with_whole_nodes():
    nodes = '{"metadata":{},"items":[{"metadata":{"name":"n1"},"spec":{},"status":{}},{"metadata":{"name":"n2"}}]}'
    args = wire.decode_filter(f'{{"Pod":{POD},"Nodes":{nodes},"NodeNames":null}}'.encode())
    assert args.offered() == ["n1", "n2"]
    assert args.nodes is not None


@pytest.mark.parametrize("tail", ['"Nodes":null,"NodeNames":null', '"NodeNames":[]', '"Nodes":{"items":null}'])
def test_no_node_offered_is_an_empty_list(tail):
    assert wire.decode_filter(f'{{"Pod":{POD},{tail}}}'.encode()).offered() == []


def test_filter_reply_has_every_key_in_exact_case():
    reply = wire.ExtenderFilterResult(
        node_names=["n1"], failed_nodes={"n2": "why"}, failed_and_unresolvable_nodes={"n3": "why"}
    )
    golden = (
        '{"Nodes":null,"NodeNames":["n1"],"FailedNodes":{"n2":"why"},'
        '"FailedAndUnresolvableNodes":{"n3":"why"},"Error":""}'
    )
    assert wire.encode(reply).decode() == golden


def test_bind_request_and_reply():
    args = wire.decode_binding(b'{"PodName":"p","PodNamespace":"ns","PodUID":"u","Node":"n1"}')
    assert (args.pod_name, args.pod_namespace, args.pod_uid, args.node) == ("p", "ns", "u", "n1")
    assert wire.encode(wire.ExtenderBindingResult()) == b'{"Error":""}'
    assert wire.encode(wire.ExtenderBindingResult(error="no")) == b'{"Error":"no"}'


def test_preempt_round_trip_with_meta_victims():
    victims = '{"n1":{"Pods":[{"UID":"u"}],"NumPDBViolations":2}}'
    args = wire.decode_preemption(
        f'{{"Pod":{POD},"NodeNameToVictims":null,"NodeNameToMetaVictims":{victims}}}'.encode()
    )
    candidates = args.candidates()
    assert candidates["n1"].uids() == ["u"]
    reply = wire.encode(wire.ExtenderPreemptionResult(node_name_to_meta_victims=candidates))
    assert reply.decode() == f'{{"NodeNameToMetaVictims":{victims}}}'


def test_preempt_with_whole_victims_is_answered_in_meta_victims():
    args = wire.decode_preemption(
        f'{{"Pod":{POD},"NodeNameToVictims":{{"n1":{{"Pods":[{POD}],"NumPDBViolations":0}}}}}}'.encode()
    )
    assert args.candidates()["n1"].uids() == ["u"]


@pytest.mark.parametrize("victims", ['{"Pods":null}', '{"Pods":[],"NumPDBViolations":0}', "null", "{}"])
def test_empty_victims_are_accepted(victims):
    # kubernetes#135486: from 1.38 candidates without victims may be offered.
    args = wire.decode_preemption(f'{{"Pod":{POD},"NodeNameToMetaVictims":{{"n1":{victims}}}}}'.encode())
    assert args.candidates()["n1"].uids() == []


def test_a_veto_is_an_empty_map():
    assert wire.encode(wire.ExtenderPreemptionResult()) == b'{"NodeNameToMetaVictims":{}}'


def test_unknown_keys_are_ignored_and_wrong_types_are_named():
    wire.decode_binding(b'{"PodName":"p","PodNamespace":"ns","PodUID":"u","Node":"n","Later":{"x":1}}')
    with pytest.raises(msgspec.ValidationError, match="PodUID"):
        wire.decode_binding(b'{"PodName":"p","PodNamespace":"ns","PodUID":7,"Node":"n"}')
    with pytest.raises(msgspec.ValidationError, match="Pod"):
        wire.decode_filter(b'{"NodeNames":["n1"]}')


def test_five_thousand_names_survive():
    names = [f"node-{i}" for i in range(5000)]
    body = json.dumps({"Pod": json.loads(POD), "Nodes": None, "NodeNames": names}).encode()
    assert wire.decode_filter(body).offered() == names
