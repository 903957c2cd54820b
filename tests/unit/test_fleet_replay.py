"""The audit log played again, on logs written by hand."""

from hack.fleet.audit import AuditEvent, flatten
from tests.fleet.replay import bindings, longest_gap, overcommits

CPUS = {"ns/a-0": 3, "ns/a-1": 3, "ns/b-0": 2}
SIZES = {"n": 4, "m": 4}


def event(name: str, verb: str, second: int, *, node: str = "", code: int = 0, takes: int = 0) -> AuditEvent:
    document = {
        "verb": verb,
        "objectRef": {"resource": "pods", "namespace": "ns", "name": name},
        "responseStatus": {"code": code or (201 if node else 200)},
        "requestReceivedTimestamp": f"2026-01-01T00:00:{second:02}.000000Z",
        "stageTimestamp": f"2026-01-01T00:00:{second + takes:02}.000000Z",
    }
    if node:
        document["objectRef"] |= {"subresource": "binding"}  # type: ignore[operator]
        document["requestObject"] = {"target": {"name": node}}
    return flatten(document)


def bind(name: str, second: int, node: str = "n", *, code: int = 201, takes: int = 0) -> AuditEvent:
    return event(name, "create", second, node=node, code=code, takes=takes)


def test_two_pods_that_a_node_cannot_hold_together_are_found_with_the_later_one() -> None:
    [found] = overcommits([bind("a-0", 1), bind("a-1", 2)], CPUS, SIZES)
    assert (found.pod, found.node, found.given, found.size) == ("ns/a-1", "n", 6, 4)


def test_one_after_the_other_is_fine_and_so_is_another_node() -> None:
    events = [bind("a-0", 1), event("a-0", "delete", 2), bind("a-1", 3), bind("b-0", 3, "m")]
    assert overcommits(events, CPUS, SIZES) == []


def test_only_what_is_certain_counts() -> None:
    """A deletion that came while a Binding was under way may have been first; pods that are not asked about, and
    Bindings that were refused, take nothing."""
    events = [
        bind("a-0", 1),
        event("a-0", "delete", 4),
        bind("a-1", 3, takes=2),
        bind("x", 5),
        bind("b-0", 6, code=409),
    ]
    assert overcommits(events, CPUS, SIZES) == []


def test_a_binding_that_was_stored_for_a_sender_who_had_gone_counts() -> None:
    lost = bind("a-1", 2, code=504)
    assert [o.pod for o in overcommits([bind("a-0", 1), lost], CPUS, SIZES)] == ["ns/a-1"]
    assert bindings([lost, bind("a-1", 3, code=409)]) == [lost]
    certain = bind("a-1", 3)
    assert bindings([lost, certain]) == [certain], "the first did not take effect, or the second could not have"


def test_the_longest_gap_is_that_of_one_gang() -> None:
    assert longest_gap([bind("a-0", 1), bind("a-1", 4), bind("b-0", 9)]) == 3.0
    assert longest_gap([]) == 0.0
