from dispatcher.reasons import amounts, event_form, largest_fit, scheduled, waiting
from kube.objects.binding import ClusterReason, Component
from tests.unit.dispatcher_objects import a_job, example, read


def test_the_event_says_word_for_word_what_users_know() -> None:
    components = read(example("pytorchjob.yaml")).components()

    assert scheduled("cfxxxxxx", components) == (
        "Binding has been scheduled successfully. Result: {cfxxxxxx:0,[{master 1} {worker 2}]}"
    )


def test_only_components_that_exist_are_told() -> None:
    assert scheduled("c1", a_job(worker=None).components()).endswith("{c1:0,[{master 1}]}")
    assert scheduled("c1", [Component(name="worker", replicas=6, min_replicas=2)]).endswith("{c1:0,[{worker 6}]}")


def test_why_a_job_waits_is_one_line_per_cluster_and_quota() -> None:
    reasons = [
        ClusterReason(cluster="c2", message="not ready 42s"),
        ClusterReason(cluster="c1", message=largest_fit(7, 9, "nvidia.com/gpu")),
    ]

    assert waiting(reasons, "queue root/child-2: max-jobs 1 of 1 used") == (
        "c1: largest fit 7 of 9 pods (nvidia.com/gpu); c2: not ready 42s; queue root/child-2: max-jobs 1 of 1 used"
    )
    assert waiting([]) == "no member cluster is joined: make a MemberCluster"


def test_events_say_the_same_while_only_time_passes() -> None:
    at_first = "c1: capacity report 31s old; c2: not ready 42s (no answer for 41s)"
    later = "c1: capacity report 95s old; c2: not ready 107s (no answer for 106s)"

    assert event_form(at_first) == event_form(later) == "c1: capacity report old; c2: not ready (no answer)"
    assert event_form("largest fit 7 of 9 pods") == "largest fit 7 of 9 pods"


def test_amounts_are_canonical() -> None:
    assert amounts({"memory": 4 << 30, "cpu": 4010}) == "cpu 4010m, memory 4Gi"
    assert amounts({}) == "nothing"
