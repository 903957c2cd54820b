import itertools
from typing import Any

import pytest

from dispatcher.policies import Failover, idle_text, match, matches, read_policy
from kube.objects.pods import Toleration
from tests.unit.dispatcher_objects import a_job, a_policy, example, policy_document

EVERY_JOB: dict[str, Any] = {}


def told(document: dict[str, Any]) -> list[str]:
    reading = read_policy(document)
    assert (reading.policy is None) == bool(reading.problems)
    return [problem.message for problem in reading.problems]


def test_the_examples_read_as_their_page_says() -> None:
    gang = read_policy(example("propagationpolicy-gang.yaml"))
    queue = read_policy(example("propagationpolicy-queue.yaml"))

    assert gang.policy is not None
    assert queue.policy is not None
    assert (gang.warnings, queue.warnings) == ((), ())
    assert (gang.policy.queued, queue.policy.queued) == (False, True)
    for policy in (gang.policy, queue.policy):
        assert policy.gang
        assert policy.propagate_deps
        assert policy.failover == Failover(toleration_seconds=30, purge_mode="Immediately")
        assert matches(policy, a_job("pytorch-test"))


# --- what is said about fields that are not carried out


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"placement": {"replicaScheduling": {"replicaSchedulingType": "Duplicated"}}},
         "spec.placement.replicaScheduling.replicaSchedulingType Duplicated would run the same job in every cluster"),
        ({"placement": {"replicaScheduling": {"customSchedulingType": "Other"}}},
         "spec.placement.replicaScheduling.customSchedulingType 'Other' is not supported: use Gang"),
        ({"placement": {"spreadConstraints": [{"spreadByField": "cluster", "minGroups": 2}]}},
         "spec.placement.spreadConstraints[0].minGroups 2 cannot be kept: a gang goes to exactly one cluster"),
        ({"placement": {"clusterAffinity": {"fieldSelector": {"matchExpressions": []}}}},
         "spec.placement.clusterAffinity.fieldSelector is not supported: put provider, region or zone as labels"),
        ({"placement": {"clusterAffinity": {}, "clusterAffinities": [{"affinityName": "a"}]}},
         "spec.placement.clusterAffinities cannot stand beside spec.placement.clusterAffinity"),
        ({"placement": {"clusterAffinity": {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}}},
         "spec.placement.clusterAffinity.labelSelector is not a label selector"),
        ({"placement": {"workloadAffinity": {"a": 1}}}, "spec.placement.workloadAffinity is not supported"),
        ({"failover": {"application": {"purgeMode": "Later"}}}, "spec.failover.application.purgeMode 'Later' is not"),
        ({"failover": {"application": {"decisionConditions": {"tolerationSeconds": -1}}}},
         "spec.failover.application.decisionConditions.tolerationSeconds -1 is not a number of seconds"),
        ({"preserveResourcesOnDeletion": True}, "spec.preserveResourcesOnDeletion true is not supported"),
        ({"schedulePriority": {"priorityClassSource": "FederatedPriorityClass", "priorityClassName": "x"}},
         "spec.schedulePriority.priorityClassSource 'FederatedPriorityClass' is not supported"),
    ],
)  # fmt: skip
def test_a_field_that_restricts_and_is_not_carried_out_is_a_problem(spec: dict[str, Any], problem: str) -> None:
    [message] = told(policy_document(**spec))

    assert message.startswith(problem)


@pytest.mark.parametrize(
    ("spec", "warning"),
    [
        ({"placement": {"replicaScheduling": {"replicaSchedulingType": "Divided"}}},
         "spec.placement.replicaScheduling.customSchedulingType is not Gang: a job still goes whole"),
        ({"failover": {"cluster": {"purgeMode": "Directly"}}}, "spec.failover.cluster has no effect"),
        ({"association": True}, "spec.association has no effect: use propagateDeps"),
        ({"dependentOverrides": ["x"]}, "spec.dependentOverrides has no effect"),
        ({"schedulerName": "mine"}, "spec.schedulerName has no effect"),
        ({"conflictResolution": "Overwrite"}, "spec.conflictResolution Overwrite has no effect"),
        ({"activationPreference": "Lazy"}, "spec.activationPreference Lazy has no effect"),
    ],
)  # fmt: skip
def test_a_field_without_effect_is_warned_about_by_name(spec: dict[str, Any], warning: str) -> None:
    reading = read_policy(policy_document(**spec))

    assert reading.policy is not None
    [message] = reading.warnings
    assert message.startswith(warning)


def test_a_policy_that_selects_nothing_at_all_is_a_problem() -> None:
    document = policy_document()
    document["spec"]["resourceSelectors"] = []

    assert told(document) == ["spec.resourceSelectors is empty: name at least one apiVersion and kind to select"]


def test_odd_documents_end_in_problems() -> None:
    odd: list[Any] = [None, 1, [], {"placement": "x", "resourceSelectors": "y"}]
    for spec in odd:
        assert told({"metadata": {"name": "p"}, "spec": spec})


def test_placement_is_read_whole() -> None:
    policy = a_policy(
        priority=5,
        suspension={"scheduling": True, "dispatchingOnClusters": {"clusterNames": ["c9"]}},
        placement={
            "clusterAffinities": [
                {"affinityName": "near", "clusterNames": ["c1", "c2"], "exclude": ["c2"]},
                {"affinityName": "rest", "labelSelector": {"matchLabels": {"zone": "a"}}},
            ],
            "clusterTolerations": [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 30}],
        },
        schedulePriority={"priorityClassSource": "KubePriorityClass", "priorityClassName": "high"},
    )

    near, rest = policy.affinities
    assert (near.name, near.clusters, near.exclude) == ("near", ("c1", "c2"), ("c2",))
    assert rest.labels is not None
    assert rest.labels.matches({"zone": "a"})
    assert not rest.labels.matches({"zone": "b"})
    assert policy.tolerations == (Toleration(key="gpu", operator="Exists", toleration_seconds=30),)
    assert policy.suspended_clusters == ("c9",)
    assert (policy.priority, policy.queued, policy.priority_class) == (5, True, "high")


# --- which policy a job falls under


def test_only_policies_of_the_jobs_namespace_count() -> None:
    assert match([a_policy(namespace="other")], a_job()) is None
    elsewhere = policy_document({"namespace": "other"})
    assert "resourceSelectors[0].namespace 'other' selects nothing" in read_policy(elsewhere).warnings[0]
    assert match([a_policy({"namespace": "other"})], a_job()) is None


def test_a_name_beats_labels_and_labels_beat_the_kind_whatever_the_order() -> None:
    by_kind = a_policy(name="a")
    by_labels = a_policy({"labelSelector": {"matchLabels": {"team": "x"}}}, name="b")
    by_name = a_policy({"name": "train"}, name="c")
    job = a_job("train", labels={"team": "x"})

    for order in itertools.permutations([by_kind, by_labels, by_name]):
        assert match(order, job) is by_name
    for order in itertools.permutations([by_kind, by_labels]):
        assert match(order, job) is by_labels


def test_priority_beats_precision_and_the_first_name_breaks_ties() -> None:
    """Karmada PropagationSpec.priority: the same priority comes before the more precise selector is asked."""
    precise = a_policy({"name": "train"}, name="a")
    important = a_policy(name="z", priority=1)

    assert match([precise, important], a_job()) is important
    twins = [a_policy(name=name) for name in ("c", "a", "b")]
    assert match(twins, a_job()) is twins[1]


def test_a_policy_keeps_its_job_while_it_matches() -> None:
    holder, better = a_policy(name="b"), a_policy({"name": "train"}, name="a")

    assert match([holder, better], a_job(), current="b") is holder
    assert match([better], a_job(), current="b") is better
    pushy = a_policy(name="c", priority=1, preemption="Always")
    assert match([holder, pushy], a_job(), current="b") is pushy
    equal = a_policy(name="c", preemption="Always")
    assert match([holder, equal], a_job(), current="b") is holder


def test_a_selectors_name_makes_its_labels_irrelevant() -> None:
    policy = a_policy({"name": "train", "labelSelector": {"matchLabels": {"team": "x"}}})

    assert matches(policy, a_job("train"))
    assert not matches(policy, a_job("other", labels={"team": "x"}))


# --- a policy that selects nothing says why


def test_two_selectors_that_match_nothing_say_so_each() -> None:
    policy = a_policy({"name": "gone"}, {"labelSelector": {"matchLabels": {"team": "x"}}})

    assert idle_text(policy, [a_job("one"), a_job("two"), a_job("far", "other")]) == (
        "selects nothing yet: resourceSelectors[0]: none of 2 PyTorchJob in namespace 'default' is named 'gone'; "
        "resourceSelectors[1]: none of 2 PyTorchJob in namespace 'default' has the labels of its labelSelector"
    )


def test_an_idle_policy_tells_what_is_missing() -> None:
    assert idle_text(a_policy(), []) == (
        "selects nothing yet: resourceSelectors[0]: there is no PyTorchJob in namespace 'default'"
    )
    assert idle_text(a_policy(), [a_job()]) == ""
    other = a_policy({"apiVersion": "batch/v1", "kind": "Job"})
    assert idle_text(other, [a_job()]).endswith("resourceSelectors[0]: Job (batch/v1) is not scheduled here")
