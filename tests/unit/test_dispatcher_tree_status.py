from dispatcher.quota import Ledger
from dispatcher.quota_tree import NO_TREE
from dispatcher.tree_status import tree_status
from tests.unit.dispatcher_objects import A, B, a_ledger, an_ask, quota_node

GPU, JOBS = "nvidia.com/gpu", "kube-queue/max-jobs"


def test_use_and_requests_are_told_node_by_node() -> None:
    leaves = [quota_node("a", namespaces=["team-a"]), quota_node("b")]
    ledger = a_ledger(quota_node("root", *leaves, min={GPU: 8}, max={GPU: 8}))
    ledger.charge("a0", an_ask(A, gpu=2))
    found = tree_status(ledger, [an_ask(A, gpu=3), an_ask(B, gpu=1)])
    assert found == {
        "name": "root",
        "used": {GPU: "2", JOBS: "1"},
        "request": {GPU: "6", JOBS: "3"},
        "children": [
            {
                "name": "a",
                "namespaces": ["team-a"],
                "used": {GPU: "2", JOBS: "1"},
                "request": {GPU: "5", JOBS: "2"},
            },
            {"name": "b", "used": {}, "request": {GPU: "1", JOBS: "1"}},
        ],
    }


def test_no_tree_has_no_status() -> None:
    assert tree_status(Ledger(NO_TREE), []) is None
