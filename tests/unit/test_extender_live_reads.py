"""Live reads and the watch of one resource: whatever their order, the core ends with the truth and never goes back."""

from hypothesis import given
from hypothesis import strategies as st

from extender.live_reads import LiveReads
from kube.api.cache import ObjectCache
from kube.objects.meta import ObjectMeta

KEY = ("ns", "g")


class Thing:
    def __init__(self, uid, version):
        self.metadata = ObjectMeta(name="g", namespace="ns", uid=uid, resource_version=str(version))


class Case:
    """A reflector's cache, the guard, and what the core believes: (uid, version) or None."""

    def __init__(self):
        self.cache: ObjectCache[Thing] = ObjectCache()
        self.guard = LiveReads()
        self.core = None
        self.told = []
        self.cache.subscribe(self.on_change)

    def on_change(self, change, old, new):
        if self.guard.passes(change, old, new):
            self.tell((new.metadata.uid, int(new.metadata.resource_version)) if new else None)

    def tell(self, state):
        self.core = state
        self.told.append(state)

    def watch(self, thing):
        self.cache.put(thing, from_watch=True)

    def watch_deleted(self, thing):
        self.cache.delete(thing.metadata)

    def read(self, thing):
        cached = self.cache.get(KEY)
        gone, news = self.guard.read(KEY, thing.metadata if thing else None, cached.metadata if cached else None)
        if gone:
            self.tell(None)
        if news:
            self.tell((thing.metadata.uid, int(thing.metadata.resource_version)))


def test_a_live_read_that_the_watch_knows_already_is_no_news():
    case = Case()
    case.watch(Thing("a", 5))
    case.read(Thing("a", 5))
    case.read(Thing("a", 4))
    assert case.told == [("a", 5)]


def test_older_events_after_a_live_read_are_dropped_and_newer_ones_pass():
    case = Case()
    case.watch(Thing("a", 5))
    case.read(Thing("a", 9))
    case.watch(Thing("a", 7))
    assert case.core == ("a", 9)
    case.watch(Thing("a", 9))
    case.watch(Thing("a", 11))
    assert case.told == [("a", 5), ("a", 9), ("a", 11)]
    assert len(case.guard) == 0


def test_an_object_that_is_gone_is_not_brought_back_by_its_past():
    case = Case()
    case.watch(Thing("a", 5))
    case.read(None)
    case.watch(Thing("a", 7))
    assert case.core is None
    case.watch_deleted(Thing("a", 8))
    assert case.told == [("a", 5), None]
    assert len(case.guard) == 0


def test_nothing_there_and_nothing_known_is_no_news():
    case = Case()
    case.read(None)
    assert case.told == []
    assert len(case.guard) == 0


def test_an_object_made_again_replaces_the_former_one():
    case = Case()
    case.watch(Thing("a", 5))
    case.read(Thing("b", 9))
    assert case.told == [("a", 5), None, ("b", 9)]
    case.watch_deleted(Thing("a", 8))
    case.watch(Thing("b", 9))
    assert case.core == ("b", 9)
    assert len(case.told) == 3


# A history of one name: versions grow; None is a deletion. The watch lags behind, live reads see the present.
HISTORIES = st.lists(st.sampled_from(["change", "delete", "create again"]), min_size=1, max_size=8)
READS = st.lists(st.integers(min_value=0, max_value=20), max_size=6)


@given(HISTORIES, READS, st.data())
def test_whatever_the_order_the_core_ends_with_the_truth_and_never_goes_back(history, reads, data):
    states: list[tuple[str, int] | None] = [("a", 1)]
    uid, version = "a", 1
    for step in history:
        version += 1
        if step == "delete":
            states.append(None)
        elif step == "create again":
            uid = f"{uid}'"
            states.append((uid, version))
        else:
            if states[-1] is None:
                uid = f"{uid}'"
            states.append((uid, version))
    case = Case()
    watched = 0
    case.watch(Thing("a", 1))
    seen = 0
    for _ in reads:
        # The watch moves on to some state, then a live read sees one at least as new as anything seen before.
        to = data.draw(st.integers(min_value=watched, max_value=len(states) - 1))
        watched = deliver(case, states, watched, to)
        seen = data.draw(st.integers(min_value=max(seen, watched), max_value=len(states) - 1))
        state = states[seen]
        case.read(Thing(*state) if state else None)
        assert case.core == state, "the live read is what the core believes"
    deliver(case, states, watched, len(states) - 1)
    assert case.core == states[-1]
    assert len(case.guard) == 0 or states[-1] is None
    versions = [told[1] for told in case.told if told is not None]
    assert versions == sorted(versions), "never back to an older state"


def deliver(case, states, at, to):
    """Every event from state `at` to state `to`."""
    for index in range(at + 1, to + 1):
        before, after = states[index - 1], states[index]
        if before is not None and (after is None or after[0] != before[0]):
            case.watch_deleted(Thing(before[0], index + 1))
        if after is not None:
            case.watch(Thing(*after))
    return to
