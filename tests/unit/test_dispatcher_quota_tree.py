from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.quota_tree import LEND_LIMIT, NO_TREE, allowed_quotas, choose_tree, home, read_tree
from tests.unit.dispatcher_objects import a_tree, example, quota_node, tree_document

CPU10: dict[str, Any] = {"min": {"cpu": 10}, "max": {"cpu": 10}}


def told(root: Any, **kwargs: Any) -> list[str]:
    reading = read_tree(tree_document(root, **kwargs))
    assert (reading.tree is None) == bool(reading.problems)
    return [problem.message for problem in reading.problems]


def test_the_examples_tree_is_taken_as_it_is() -> None:
    """Integers unquoted, a child without min, a root far above any real capacity."""
    reading = read_tree(example("elasticquotatree.yaml"))

    assert reading.problems == ()
    assert reading.tree is not None
    root, child = reading.tree.nodes["root",], reading.tree.nodes["root", "child-2"]
    assert root.max == root.min
    assert root.max == {
        "cpu": 999_900_000,
        "memory": 400_000 << 30,
        "kube-queue/max-jobs": 10_000_000_000,
        "nvidia.com/gpu": 100_000,
    }
    assert child.full_name == "root/child-2"
    assert child.max["kube-queue/max-jobs"] == 1
    assert child.min == {}
    assert reading.tree.leaf_of == {"default": ("root", "child-2")}


def test_k1_amounts_above_31_and_63_bits_are_plain_numbers() -> None:
    tree = a_tree(quota_node("root", quota_node("a", max={"memory": "2147483648", "cpu": 2147483647, "x/y": "20E"})))

    assert tree.nodes["root", "a"].max == {"memory": 2**31, "cpu": (2**31 - 1) * 1000, "x/y": 20 * 10**18}


def test_absent_and_null_max_is_no_limit() -> None:
    tree = a_tree(quota_node("root", quota_node("a", max={"cpu": None, "memory": "1Gi"})))

    assert tree.nodes["root", "a"].max == {"memory": 1 << 30}


def test_amounts_finer_than_one_unit_are_rounded_down() -> None:
    """Use is counted in whole units, so 1.1Gi (1181116006.4 bytes) binds exactly like 1181116006."""
    tree = a_tree(quota_node("root", quota_node("a", max={"memory": "1.1Gi", "cpu": "0.0005"})))

    assert tree.nodes["root", "a"].max == {"memory": 1181116006, "cpu": 0}


# --- the rules of the whole tree


@pytest.mark.parametrize(
    ("root", "problem"),
    [
        (quota_node("root", quota_node("a", min={"cpu": 2}, max={"cpu": 1}), **CPU10),
         "spec.root.children[0].min.cpu 2 is more than max 1: lower min or raise max"),
        (quota_node("root", quota_node("a", min={"cpu": 6}), quota_node("b", min={"cpu": "4100m"}), **CPU10),
         "spec.root.min.cpu 10 is less than its children's 10.1 together: raise it or lower theirs"),
        (quota_node("root", quota_node("a", min={"nvidia.com/gpu": 1}), **CPU10),
         "spec.root.min.nvidia.com/gpu 0 is less than its children's 1 together: raise it or lower theirs"),
        (quota_node("root", min={"cpu": 9}, max={"cpu": 10}),
         "spec.root.min.cpu 9 is not the root's max 10: the root's min and max have to be equal"),
        (quota_node("root", max={"cpu": 10}),
         "spec.root.min.cpu (absent) is not the root's max 10: the root's min and max have to be equal"),
        (quota_node("root", quota_node("a"), quota_node("a")),
         "spec.root.children[1].name 'a' is also the name of spec.root.children[0]: give each node its own"),
        (quota_node("root", quota_node("root")), "spec.root.children[0].name 'root' is also the name of spec.root"),
        (quota_node("root", quota_node("")), "spec.root.children[0].name '' is no name: every node needs one"),
        (quota_node("root", quota_node("a/b")), "spec.root.children[0].name 'a/b' is no name: every node needs one"),
        (quota_node("root", quota_node("a", namespaces=["x"]), quota_node("b", namespaces=["x"])),
         "spec.root.children[1].namespaces has 'x', which spec.root.children[0] has too: a namespace belongs to one"),
        (quota_node("root", quota_node("a", namespaces=["x", "x"])), "spec.root.children[0].namespaces has 'x', which"),
        (quota_node("root", quota_node("a"), namespaces=["x"]),
         "spec.root.namespaces is on a node with children: namespaces go to leaves; move them to one"),
        (quota_node("root", quota_node("a", max={"cpu": -1})), "spec.root.children[0].max.cpu -1 is negative"),
        (quota_node("root", quota_node("a", max={"cpu": "lots"})), "spec.root.children[0].max.cpu is not a quantity"),
        (quota_node("root", quota_node("a", max=["cpu"])), "spec.root.children[0].max is not a map of resources"),
        (quota_node("root", quota_node("a", attributes={"alibabacloud.com/lendlimit": "{"})),
         "spec.root.children[0].attributes.alibabacloud.com/lendlimit is not JSON"),
        (quota_node("root", {"name": "a", "namespaces": [1]}), "spec.root.children[0].namespaces is not a list of"),
        (quota_node("root", "a"), "spec.root.children[0] is not a node: give it a name, min and max"),
        ({"name": "root", "children": {"a": 1}}, "spec.root.children is not a list of nodes"),
        (None, "spec.root is missing: describe the tree's root"),
    ],
)  # fmt: skip
def test_k4_a_tree_that_contradicts_itself_is_refused_with_the_reason(root: Any, problem: str) -> None:
    [message] = told(root)

    assert message.startswith(problem)


def test_all_that_is_wrong_is_told_at_once() -> None:
    root = quota_node("root", quota_node("a", min={"cpu": 2}, max={"cpu": 1}), quota_node("a"), min={"cpu": 2})

    assert len(told(root)) == 3


def test_a_child_may_have_a_higher_max_than_its_parent() -> None:
    assert told(quota_node("root", quota_node("a", max={"cpu": 99}), **CPU10)) == []


def test_unknown_attributes_are_named() -> None:
    reading = read_tree(tree_document(quota_node("root", attributes={"preempt-policy": "x"})))

    assert reading.warnings == ("spec.root.attributes.preempt-policy has no effect",)


@pytest.mark.parametrize("limit", ['{"cpu": "4"}', '[{"cpu": "4"}]', {"cpu": "4"}])
def test_lend_limits_say_what_is_held_back(limit: Any) -> None:
    leaf = quota_node("a", min={"cpu": 6, "memory": "1Gi"}, attributes={"alibabacloud.com/lendlimit": limit})
    tree = a_tree(quota_node("root", leaf, min={"cpu": 6, "memory": "1Gi"}, max={"cpu": 6, "memory": "1Gi"}))

    assert tree.nodes["root", "a"].held_back("cpu") == 2000
    assert tree.nodes["root", "a"].held_back("memory") == 0


# --- one tree, in one place


def test_only_kube_system_counts_and_only_the_oldest_there() -> None:
    def made(namespace: str, name: str, created: str) -> dict[str, Any]:
        document = tree_document(quota_node("root"), namespace, name)
        document["metadata"]["creationTimestamp"] = created
        return document

    oldest, old = made("default", "x", "2025"), made("kube-system", "b", "2026")
    second = made("kube-system", "a", "2027")

    chosen, rest = choose_tree([second, oldest, old])

    assert chosen is old
    assert rest == {
        ("default", "x"): "not in force: the quota tree has to be in namespace kube-system",
        ("kube-system", "a"): "not in force: 'b' is older, and only one tree counts; remove one",
    }
    assert choose_tree([]) == (None, {})
    assert told(quota_node("root"), namespace="default") == [
        "metadata.namespace 'default' is not kube-system: the one quota tree has to be there"
    ]


# --- which quota a job goes to

TREE = a_tree(
    quota_node(
        "root",
        quota_node("a", namespaces=["team-a", "team-a2"]),
        quota_node("dept", quota_node("b", namespaces=["team-b"])),
    )
)


def test_a_namespaces_own_leaf_is_the_default() -> None:
    assert home(TREE, "team-a2").path == ("root", "a")
    assert home(TREE, "team-b").path == ("root", "dept", "b")


@pytest.mark.parametrize("allowed", [["b"], ["root/dept/b"], ["*"], ["x", "b"]])
def test_another_quota_needs_the_namespaces_permission(allowed: list[str]) -> None:
    assert home(TREE, "team-a", "b", allowed).path == ("root", "dept", "b")
    assert home(TREE, "team-a", "b").reason == (
        "held: namespace 'team-a' may not use quota 'b': name it in the namespace's annotation "
        "kube-queue/available-quota"
    )


def test_ones_own_quota_needs_no_permission() -> None:
    assert home(TREE, "team-a", "a").path == ("root", "a")


@pytest.mark.parametrize(
    ("namespace", "label", "reason"),
    [
        ("team-c", "", "held: namespace 'team-c' is on no leaf of the quota tree: add it to one"),
        ("team-a", "c", "held: quota 'c' is not in the quota tree: correct the job's label"),
        ("team-a", "dept", "held: quota 'dept' has children, jobs go to leaves: correct the job's label"),
    ],
)
def test_k8_a_job_without_a_quota_is_held_with_a_reason(namespace: str, label: str, reason: str) -> None:
    assert home(TREE, namespace, label) == home(TREE, namespace, label)
    assert home(TREE, namespace, label).path is None
    assert home(TREE, namespace, label).reason == reason


def test_without_a_tree_jobs_are_held() -> None:
    assert home(NO_TREE, "default").reason.startswith("held: there is no valid ElasticQuotaTree in kube-system")


def test_permissions_are_read_from_the_namespace() -> None:
    assert allowed_quotas({"kube-queue/available-quota": "b, root/c ,,"}) == ["b", "root/c"]
    assert allowed_quotas({}) == []


# --- nothing crashes it

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "min", "max", "children", "namespaces", "attributes", "cpu", LEND_LIMIT]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(values)
def test_any_document_reads_as_a_tree_or_as_problems(root: Any) -> None:
    told(root)


def test_a_very_deep_tree_is_read() -> None:
    node = quota_node("n0")
    for depth in range(1, 2000):
        node = quota_node(f"n{depth}", node)

    assert len(a_tree(node).nodes) == 2000
