"""A half-bound gang is brought to its end within the stated limit, whoever told first that it is half bound."""

import pytest

from extender.config import CoreConfig
from extender.effects import Outcome
from tests.unit.extender_objects import member, node, pod_group
from tests.unit.extender_stage import Stage

LIMIT = 30.0


@pytest.mark.parametrize("first", ["answer", "watch"])
def test_the_limit_counts_from_the_first_binding(first: str) -> None:
    """Two of three are bound, the third is refused for ever. The watch may be faster than the POST's own answer."""
    stage = Stage(CoreConfig(takeover_grace=0.0, heal_limit=LIMIT), auto_post=False)
    stage.add(*(node(f"n{i}", cpu=4) for i in range(3))).start()
    pods = [member(f"m{i}", cpu="3") for i in range(3)]
    stage.add(pod_group("train", 3), *pods)
    for each in pods:
        stage.schedule(each)
    stage.refuse_posts["uid-m2"] = [Outcome.REJECTED] * 100
    posted = dict(stage.posts)
    assert len(posted) == 3
    stage.auto_post = True
    for uid in ("uid-m0", "uid-m1"):
        if first == "watch":
            bound = member(uid.removeprefix("uid-"), cpu="3", node=posted[uid])
            stage.add(bound)
            stage.perform(stage.core.posted(uid, posted[uid], Outcome.BOUND, "", stage.now))
        else:
            stage.post(uid, posted[uid])
    stage.post("uid-m2", posted["uid-m2"])

    stage.pass_time(LIMIT - 1)
    assert stage.evicted == []
    stage.pass_time(2)
    assert stage.evicted == ["m0", "m1"]
    assert {event.ref.name for event in stage.events if event.reason == "GangEvicted"} == {"train", "m0", "m1", "m2"}
