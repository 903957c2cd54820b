"""Stories by hand, then every rule against a plain retelling of kube-scheduler's filters on random clusters."""

from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.objects import topology_counts
from kube.objects.node_predicates import NodeView, selects, tolerates_all
from kube.objects.nodes import Taint
from kube.objects.pod_class import PodClass, template_class, template_classes
from kube.objects.topology import (
    AFFINITY_UNMET,
    ANTI_AFFINITY_UNMET,
    EXISTING_ANTI_AFFINITY_UNMET,
    SPREAD_LABEL_MISSING,
    SPREAD_UNMET,
    TopologyState,
)
from tests import samples

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"


def node(name: str, zone: str | None = None, taints: tuple[Taint, ...] = (), **labels: str) -> NodeView:
    own = {HOST: name, **({ZONE: zone} if zone is not None else {}), **labels}
    return NodeView(name, own, taints, unschedulable=False, ready=True, allocatable={})


A1, A2, B1, C1 = node("a1", "a"), node("a2", "a"), node("b1", "b"), node("c1", "c")
BARE = node("bare")


def term(key: str, selector: Any, **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": selector, **more}


def app(name: str) -> dict[str, Any]:
    return {"matchLabels": {"app": name}}


def template(
    labels: dict[str, str], *, near: Any = (), apart: Any = (), spread: Any = (), **spec: Any
) -> dict[str, Any]:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"podAffinity": {required: list(near)}, "podAntiAffinity": {required: list(apart)}}
    return {
        "metadata": {"labels": labels},
        "spec": {"containers": [], "affinity": affinity, "topologySpreadConstraints": list(spread), **spec},
    }


def pod(labels: dict[str, str], namespace: str = "ns", keep: tuple[str, ...] = ("app",), **rules: Any) -> PodClass:
    return template_class(namespace, template(labels, **rules), label_keys=keep)


def spreading(key: str = ZONE, skew: int = 1, name: str = "x", **more: Any) -> dict[str, Any]:
    return {
        "topologyKey": key,
        "maxSkew": skew,
        "labelSelector": app(name),
        "whenUnsatisfiable": "DoNotSchedule",
        **more,
    }


def test_without_rules_everything_goes_everywhere() -> None:
    state = TopologyState([A1])
    state.place(pod({"app": "x"}), A1)
    assert not state.concerns(pod({"app": "x"}))
    assert state.allows(pod({"app": "x"}), A1)


def test_members_that_shun_each_other_take_one_node_each() -> None:
    loner = pod({"app": "x"}, apart=[term(HOST, app("x"))])
    state = TopologyState([A1, A2, B1])
    assert state.allows(loner, A1)
    state.place(loner, A1)
    assert state.reason(loner, A1) == ANTI_AFFINITY_UNMET
    assert state.allows(loner, A2)
    state.remove(loner, A1)
    assert state.allows(loner, A1)


def test_a_pod_that_shuns_nobody_is_shunned_by_one_that_is_there() -> None:
    loner, plain = pod({"app": "y"}, apart=[term(ZONE, app("x"))]), pod({"app": "x"})
    state = TopologyState([A1, A2, B1])
    state.place(loner, A1)
    assert state.concerns(plain)
    assert state.reason(plain, A2) == EXISTING_ANTI_AFFINITY_UNMET
    assert state.allows(plain, B1)
    assert state.allows(pod({"app": "z"}), A2)
    state.remove(loner, A1)
    assert state.allows(plain, A2)


def test_the_first_of_a_series_may_start_anywhere_and_the_rest_follow_it() -> None:
    together = pod({"app": "x"}, near=[term(ZONE, app("x"))])
    state = TopologyState([A1, A2, B1, BARE])
    assert state.allows(together, B1)
    assert state.reason(together, BARE) == AFFINITY_UNMET
    state.place(together, A1)
    assert state.allows(together, A2)
    assert state.reason(together, B1) == AFFINITY_UNMET


def test_affinity_to_a_stranger_waits_for_the_stranger() -> None:
    follower, leader = pod({"app": "f"}, near=[term(ZONE, app("lead"))]), pod({"app": "lead"})
    state = TopologyState([A1, B1])
    assert state.reason(follower, A1) == AFFINITY_UNMET
    state.place(leader, B1)
    assert state.reason(follower, A1) == AFFINITY_UNMET
    assert state.allows(follower, B1)


def test_one_pod_must_match_all_affinity_terms_at_once() -> None:
    # interpodaffinity updateWithAffinityTerms: a pod counts only if it matches every term.
    both = pod({"app": "f"}, near=[term(ZONE, app("x")), term(HOST, {"matchLabels": {"role": "db"}})])
    state = TopologyState([A1, B1])
    state.place(pod({"app": "x"}), A1, {"app": "x"})
    assert state.reason(both, A1) == AFFINITY_UNMET
    state.place(pod({"app": "x"}), A1, {"app": "x", "role": "db"})
    assert state.allows(both, A1)


def test_namespaces_are_the_pods_own_unless_said() -> None:
    own = pod({"app": "x"}, apart=[term(HOST, app("x"))])
    listed = pod({"app": "x"}, apart=[term(HOST, app("x"), namespaces=["other"])])
    labelled = pod({"app": "x"}, apart=[term(HOST, app("x"), namespaceSelector={"matchLabels": {"team": "t"}})])
    everywhere = pod({"app": "x"}, apart=[term(HOST, app("x"), namespaceSelector={})])
    state = TopologyState([A1, A2], {"other": {"team": "t"}})
    state.place(pod({"app": "x"}, "other"), A1)
    assert state.allows(own, A1)
    assert not state.allows(listed, A1)
    assert not state.allows(labelled, A1)
    assert not state.allows(everywhere, A1)
    state.place(pod({"app": "x"}), A2)
    assert [state.allows(each, A2) for each in (own, listed, labelled, everywhere)] == [False, True, True, False]


def test_a_null_selector_shuns_nobody_and_an_empty_one_shuns_all() -> None:
    state = TopologyState([A1])
    state.place(pod({"app": "x"}), A1)
    assert state.allows(pod({}, apart=[term(HOST, None)]), A1)
    assert not state.allows(pod({}, apart=[term(HOST, {})]), A1)


def test_spread_keeps_zones_within_the_skew() -> None:
    even = pod({"app": "x"}, spread=[spreading()])
    state = TopologyState([A1, A2, B1, C1, BARE])
    assert state.reason(even, BARE) == SPREAD_LABEL_MISSING
    state.place(even, A1)
    assert state.reason(even, A2) == SPREAD_UNMET
    state.place(even, B1)
    assert state.reason(even, A2) == SPREAD_UNMET  # c is still empty
    state.place(even, C1)
    assert state.allows(even, A2)
    state.remove(even, C1)
    assert state.reason(even, A2) == SPREAD_UNMET


def test_a_pod_outside_its_own_selector_is_not_counted_as_one_more() -> None:
    watcher = pod({"app": "w"}, spread=[spreading(name="x")])
    state = TopologyState([A1, B1])
    state.place(pod({"app": "x"}), A1)
    assert state.allows(watcher, A1)
    state.place(pod({"app": "x"}), A1)
    assert state.reason(watcher, A1) == SPREAD_UNMET


def test_fewer_domains_than_min_domains_count_as_an_empty_one() -> None:
    wide = pod({"app": "x"}, spread=[spreading(minDomains=3)])
    state = TopologyState([A1, B1])
    state.place(wide, A1)
    state.place(wide, B1)
    assert state.reason(wide, A1) == SPREAD_UNMET
    state.set_node(C1)
    state.place(wide, C1)
    assert state.allows(wide, A1)


def test_nodes_the_pod_may_not_use_are_no_domains_unless_the_policy_ignores_that() -> None:
    pool_a, pool_b = node("a1", "a", pool="p"), node("b1", "b")
    honest = pod({"app": "x"}, spread=[spreading()], nodeSelector={"pool": "p"})
    careless = pod({"app": "x"}, spread=[spreading(nodeAffinityPolicy="Ignore")], nodeSelector={"pool": "p"})
    state = TopologyState([pool_a, pool_b])
    state.place(pod({"app": "x"}), pool_a)
    assert state.allows(honest, pool_a)
    assert state.reason(careless, pool_a) == SPREAD_UNMET


def test_tainted_nodes_are_domains_unless_the_policy_honours_taints() -> None:
    tainted = node("b1", "b", (Taint("gpu", "", "NoSchedule"),))
    state = TopologyState([A1, tainted])
    state.place(pod({"app": "x"}), A1)
    assert state.reason(pod({"app": "x"}, spread=[spreading()]), A1) == SPREAD_UNMET
    assert state.allows(pod({"app": "x"}, spread=[spreading(nodeTaintsPolicy="Honor")]), A1)


def test_a_terminating_pod_shuns_but_is_not_spread() -> None:
    loner = pod({"app": "x"}, apart=[term(HOST, app("x"))])
    even = pod({"app": "x"}, spread=[spreading()])
    state = TopologyState([A1, B1])
    state.place(pod({"app": "x"}), A1, terminating=True)
    assert state.allows(even, A1)
    assert not state.allows(loner, A1)


def test_removing_what_was_never_placed_is_an_error() -> None:
    state = TopologyState([A1])
    with pytest.raises(KeyError):
        state.remove(pod({"app": "x"}), A1)
    assert not state._sits


def test_a_relabelled_node_changes_domain_and_a_lost_one_leaves() -> None:
    together = pod({"app": "x"}, near=[term(ZONE, app("x"))])
    state = TopologyState([A1, B1])
    state.place(together, A1)
    assert not state.allows(together, B1)
    moved = node("a1", "b")
    state.set_node(moved)
    assert state.allows(together, B1)
    state.forget_node("a1")
    # Nobody matching is in any domain now: the series may start anew.
    assert state.allows(together, B1)
    assert state.allows(together, C1)
    state.remove(together, A1)


def test_roles_of_one_gang_see_each_other() -> None:
    classes = template_classes(
        "ns",
        {
            "master": template({"part": "m", "job": "j"}),
            "worker": template({"part": "w", "job": "j"}, apart=[term(HOST, {"matchLabels": {"part": "m"}})]),
        },
    )
    state = TopologyState([A1, A2])
    state.place(classes["master"], A1)
    assert not state.allows(classes["worker"], A1)
    state.place(classes["worker"], A2)
    assert not state.allows(classes["master"], A2)
    assert state.selector_keys == {"part"}


def test_the_elastic_sample_stays_in_one_zone() -> None:
    worker_spec = samples.job("elastic-etcd-companions.yaml")["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker = template_class("team-a", worker_spec["template"])
    state = TopologyState([A1, A2, B1])
    state.place(worker, A1)
    assert [state.allows(worker, each) for each in (A1, A2, B1)] == [True, True, False]


def test_rules_of_jobs_long_gone_leave_nothing_behind() -> None:
    state = TopologyState([A1, B1])
    for job in range(500):
        labels = {"app": f"job-{job}"}
        member = pod(
            labels,
            near=[term(ZONE, app(f"job-{job}"))],
            apart=[term(HOST, app(f"job-{job}"))],
            spread=[spreading(HOST, name=f"job-{job}")],
        )
        assert state.allows(member, A1)
        state.place(member, A1)
        assert not state.allows(member, A1)
        state.remove(member, A1)
    assert not state._sits
    assert not state._owners
    assert not state._existing
    assert max(len(state._groups), len(state._tallies), len(state._spreads)) <= topology_counts.MAX_COUNTS


# --- against a retelling of the filters ---

NODES = [
    node("a1", "a", pool="p"),
    node("a2", "a", (Taint("gpu", "", "NoSchedule"),)),
    node("b1", "b", pool="p"),
    node("c1", "c"),
    node("bare", pool="p"),
]
LABELS = [{"app": "x"}, {"app": "y"}, {"app": "x", "role": "r"}, {}]
SELECTORS: list[Any] = [
    app("x"),
    app("y"),
    {},
    None,
    {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
    {"matchExpressions": [{"key": "role", "operator": "DoesNotExist"}]},
    {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["y"]}]},
]
NAMESPACE_LABELS = {"ns": {"team": "t"}, "other": {}}

terms = st.builds(
    lambda key, selector, more: term(key, selector, **more),
    st.sampled_from([HOST, ZONE, "pool"]),
    st.sampled_from(SELECTORS),
    st.sampled_from([{}, {"namespaces": ["other"]}, {"namespaceSelector": {"matchLabels": {"team": "t"}}}]),
)
spreads = st.builds(
    lambda key, selector, skew, more: {
        "topologyKey": key,
        "labelSelector": selector,
        "maxSkew": skew,
        "whenUnsatisfiable": "DoNotSchedule",
        **more,
    },
    st.sampled_from([HOST, ZONE]),
    st.sampled_from(SELECTORS),
    st.integers(1, 2),
    st.sampled_from([{}, {"minDomains": 4}, {"nodeAffinityPolicy": "Ignore"}, {"nodeTaintsPolicy": "Honor"}]),
)
classes = st.builds(
    lambda labels, namespace, near, apart, spread, selector: pod(
        labels, namespace, ("app", "role"), near=near, apart=apart, spread=spread, nodeSelector=selector
    ),
    st.sampled_from(LABELS),
    st.sampled_from(["ns", "other"]),
    st.lists(terms, max_size=2),
    st.lists(terms, max_size=2),
    st.lists(spreads, max_size=2),
    st.sampled_from([{}, {"pool": "p"}]),
)

Sitting = tuple[PodClass, NodeView, bool]


def retold(cls: PodClass, at: NodeView, sitting: list[Sitting]) -> str | None:
    """podtopologyspread.Filter, then interpodaffinity.Filter of 1.36, by counting every pod anew."""

    def space(namespace: str) -> Mapping[str, str]:
        return NAMESPACE_LABELS.get(namespace, {})

    def matches(rule: Any, other: PodClass) -> bool:
        return bool(rule.matches(other.namespace, dict(other.subject[1]), space(other.namespace)))

    keys = [constraint.topology_key for constraint in cls.spread]
    for constraint in cls.spread:
        key = constraint.topology_key
        if key not in at.labels:
            return SPREAD_LABEL_MISSING
        counts: dict[str, int] = {}
        for each in NODES:
            eligible = all(k in each.labels for k in keys)
            eligible = eligible and (not constraint.honor_affinity or selects(cls.constraints, each))
            eligible = eligible and (not constraint.honor_taints or tolerates_all(cls.constraints, each))
            if eligible:
                counts[each.labels[key]] = counts.get(each.labels[key], 0) + sum(
                    1
                    for other, where, terminating in sitting
                    if where is each
                    and not terminating
                    and other.namespace == cls.namespace
                    and not constraint.selector.everything
                    and constraint.selector.matches(dict(other.subject[1]))
                )
        least = 0 if len(counts) < constraint.min_domains else min(counts.values())
        own = 1 if constraint.selector.matches(dict(cls.subject[1])) else 0
        if counts.get(at.labels[key], 0) + own - least > constraint.max_skew:
            return SPREAD_UNMET
    if cls.affinity:
        followed = [where for other, where, _ in sitting if all(matches(rule, other) for rule in cls.affinity)]
        if any(rule.topology_key not in at.labels for rule in cls.affinity):
            return AFFINITY_UNMET
        pairs = {
            (rule.topology_key, where.labels.get(rule.topology_key)) for rule in cls.affinity for where in followed
        }
        pairs = {pair for pair in pairs if pair[1] is not None}
        if not all((rule.topology_key, at.labels[rule.topology_key]) in pairs for rule in cls.affinity) and (
            pairs or not all(matches(rule, cls) for rule in cls.affinity)
        ):
            return AFFINITY_UNMET
    for rule in cls.anti_affinity:
        for other, where, _ in sitting:
            key = rule.topology_key
            if key in at.labels and where.labels.get(key) == at.labels[key] and matches(rule, other):
                return ANTI_AFFINITY_UNMET
    for other, where, _ in sitting:
        for rule in other.anti_affinity:
            key = rule.topology_key
            if key in at.labels and where.labels.get(key) == at.labels[key] and matches(rule, cls):
                return EXISTING_ANTI_AFFINITY_UNMET
    return None


@given(st.lists(classes, min_size=1, max_size=4), st.sampled_from([1, 128]), st.data())
def test_every_verdict_is_kube_schedulers_at_every_step(pool: list[PodClass], kept: int, data: st.DataObject) -> None:
    with mock.patch.multiple(topology_counts, MAX_COUNTS=kept, MAX_VERDICTS=kept):
        state = TopologyState(NODES, NAMESPACE_LABELS)
        sitting: list[Sitting] = []
        for _ in range(data.draw(st.integers(1, 8), label="steps")):
            leave: bool = data.draw(st.booleans(), label="remove")
            if sitting and leave:
                cls, where, terminating = sitting.pop(data.draw(st.integers(0, len(sitting) - 1)))
                state.remove(cls, where, terminating=terminating)
            else:
                sat = (data.draw(st.sampled_from(pool)), data.draw(st.sampled_from(NODES)), data.draw(st.booleans()))
                state.place(sat[0], sat[1], terminating=sat[2])
                sitting.append(sat)
            for asking in pool:
                for at in NODES:
                    assert state.reason(asking, at) == retold(asking, at, sitting)
                if not state.concerns(asking):
                    assert all(retold(asking, at, sitting) is None for at in NODES)
