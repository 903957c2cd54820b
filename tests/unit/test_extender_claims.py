"""Fairness: big gangs get their turn against a stream of small pods, and cost others little when they do not."""

from kube.objects.pods import Pod
from tests.unit.extender_objects import member, node, pod, pod_group, reservation, template
from tests.unit.extender_stage import Stage


def full_cluster(nodes: int = 2) -> tuple[Stage, list[Pod]]:
    """Each node holds four small pods of one cpu and has no room left."""
    stage = Stage().add(*(node(f"n{i}", cpu=4) for i in range(nodes))).start()
    small = [pod(f"s{i}-{j}", node=f"n{i}") for i in range(nodes) for j in range(4)]
    stage.add(*small)
    return stage, small


BIG = [{"name": "worker", "count": 1, "minCount": 1, "template": template(cpu="4")}]


class TestReservations:
    def test_without_a_claim_it_is_refused_at_once(self):
        stage, _ = full_cluster()
        stage.add(reservation(roles=BIG))
        assert stage.status("id-job-1") == "Refused InsufficientResources"

    def test_a_claim_keeps_one_node_from_small_pods_until_it_is_free(self):
        stage, small = full_cluster()
        stage.add(reservation(roles=BIG, claim=True, ttlSeconds=600))
        assert stage.status("id-job-1") == ""
        for index in range(4):
            stage.delete(small[index])
            later = stage.filter(pod(f"later-{index}"), ["n0"])
            assert later.node_names == [], "n0 is claimed"
        stage.pass_time(0.2)
        assert stage.status("id-job-1") == "Reserved"
        assert stage.filter(pod("later"), ["n1"]).node_names == ["n1"], "the other node is not"

    def test_higher_priority_and_daemonsets_pass(self):
        stage, small = full_cluster(1)
        stage.add(reservation(roles=BIG, claim=True))
        stage.delete(small[0])
        assert stage.filter(pod("urgent", priority=1)).node_names == ["n0"]
        assert stage.filter(pod("agent", owner_kind="DaemonSet")).node_names == ["n0"]

    def test_one_claim_at_a_time(self):
        stage, _ = full_cluster()
        stage.add(reservation("one", roles=BIG, claim=True), reservation("two", roles=BIG, claim=True))
        assert stage.status("id-one-1") == ""
        assert stage.status("id-two-1") == "Refused InsufficientResources"

    def test_a_claim_is_bounded_and_then_pauses(self):
        stage, small = full_cluster(1)
        stage.add(reservation(roles=BIG, claim=True, ttlSeconds=10_000))
        stage.pass_time(601)
        assert stage.status("id-job-1") == "Refused InsufficientResources"
        stage.delete(small[0])
        assert stage.filter(pod("later")).node_names == ["n0"]
        stage.add(reservation("two", roles=BIG, claim=True))
        assert stage.status("id-two-1") == "Refused InsufficientResources", "the pause"
        stage.pass_time(301)
        stage.add(reservation("three", roles=BIG, claim=True))
        assert stage.status("id-three-1") == ""

    def test_what_would_never_fit_claims_nothing(self):
        stage, _ = full_cluster()
        roles = [{"name": "worker", "count": 1, "minCount": 1, "template": template(cpu="5")}]
        stage.add(reservation(roles=roles, claim=True))
        assert stage.status("id-job-1") == "Refused InsufficientResources"

    def test_a_deleted_reservation_leaves_no_claim(self):
        stage, small = full_cluster(1)
        stage.add(reservation(roles=BIG, claim=True))
        stage.perform(stage.core.reservation_deleted("muster-system", "id-job-1", stage.now))
        stage.delete(small[0])
        assert stage.filter(pod("later")).node_names == ["n0"]
        assert stage.core.metrics().sizes["claims"] == 0

    def test_claimed_nodes_are_not_reported_as_free(self):
        stage, small = full_cluster(1)
        stage.add(reservation(roles=BIG, claim=True))
        stage.delete(small[0])
        assert stage.core.report().shapes == []


class TestUserGangs:
    def test_a_stream_of_small_pods_does_not_starve_a_gang(self):
        # A8: each small pod that ends is followed by the next one within the same second.
        stage, small = full_cluster(1)
        gang = [member(f"m{i}", "g", cpu="2") for i in range(2)]
        stage.add(pod_group("g", 2), *gang)
        running = [each.metadata.name for each in small]
        ended = dict(zip(running, small, strict=True))
        for second in range(300):
            for each in gang:
                if each.metadata.name not in stage.bound():
                    stage.schedule(each)
            if running:
                stage.delete(ended.pop(running.pop(0)))
            following = pod(f"next-{second}")
            answer = stage.filter(following)
            room = 4 - len(running) - 2 * sum(name.startswith("m") for name in stage.bound())
            if answer.node_names and room > 0:
                following.spec.node_name = "n0"
                stage.add(following)
                running.append(following.metadata.name)
                ended[following.metadata.name] = following
            stage.pass_time(1)
        assert {"m0", "m1"} <= set(stage.bound())

    def test_many_blocked_gangs_do_not_keep_a_small_one_behind_them(self):
        # Thirty older gangs that never fit; room comes and goes all the time; the youngest would fit.
        stage = Stage().add(node("a", cpu=4)).start()
        stage.add(pod("runs", cpu="3", node="a"))
        for index in range(30):
            pods = [member(f"b{index}-{i}", f"b{index}", cpu="3") for i in range(2)]
            stage.add(pod_group(f"b{index}", 2), *pods)
            stage.schedule(pods[0])
        small = [member(f"small-{i}", "small") for i in range(2)]
        stage.add(pod_group("small", 2), *small)
        assert isinstance(stage.schedule(small[0]), str)
        stage.delete(pod("runs"))
        for second in range(30):
            churn = pod(f"churn-{second}", cpu="1", node="a")
            stage.add(churn)
            stage.pass_time(0.05)
            stage.delete(churn)
            stage.pass_time(0.05)
        assert "small-0" in stage.woken
        assert stage.core.metrics().slots == 2

    def test_a_blocked_gang_does_not_stop_smaller_work(self):
        stage = Stage().add(node("a", cpu=4)).start()
        big = [member(f"big-{i}", "big", cpu="2") for i in range(3)]
        stage.add(pod_group("big", 3), *big)
        for each in big:
            assert isinstance(stage.schedule(each), str)
        small = [member(f"small-{i}", "small") for i in range(2)]
        stage.add(pod_group("small", 2), *small)
        for each in small:
            stage.schedule(each)
        assert len(stage.bound()) == 2
        assert stage.filter(pod("plain")).node_names == ["a"]
