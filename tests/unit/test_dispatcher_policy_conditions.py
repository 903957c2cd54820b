"""Conditions of a PropagationPolicy."""

from dispatcher.policy_conditions import policy_conditions
from kube.objects.meta import Condition

NOON, ONE = "2026-03-01T12:00:00Z", "2026-03-01T13:00:00Z"


def of(conditions: list[Condition]) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in conditions}


def test_a_policy_that_selects_a_job() -> None:
    found = policy_conditions([], "", [], 1, NOON)
    assert of(found) == {"Ready": ("True", "InForce"), "Matched": ("True", "SelectsJobs")}


def test_a_policy_that_selects_nothing_says_what_each_selector_lacks() -> None:
    found = policy_conditions([], "selects nothing yet: resourceSelectors[0]: no job is named 'x'", [], 1, NOON)
    assert of(found)["Matched"] == ("False", "SelectsNothing")
    assert "no job is named 'x'" in found[1].message


def test_problems_come_first_all_of_them() -> None:
    found = policy_conditions(["spec.a: wrong", "spec.b: worse"], None, [], 1, NOON)
    assert of(found) == {"Ready": ("False", "InvalidPolicy"), "Matched": ("False", "InvalidPolicy")}
    assert found[0].message == "not in force: spec.a: wrong; spec.b: worse"


def test_nobody_looked_is_not_the_same_as_nothing_found() -> None:
    assert of(policy_conditions([], None, [], 1, NOON))["Matched"] == ("Unknown", "NotLooked")


def test_the_transition_time_moves_only_with_the_status() -> None:
    first = policy_conditions([], "selects nothing yet", [], 1, NOON)
    again = policy_conditions([], "selects nothing yet, still", first, 2, ONE)
    assert [c.last_transition_time for c in again] == [NOON, NOON]
    assert [c.observed_generation for c in again] == [2, 2]
    matched = policy_conditions([], "", again, 2, ONE)
    assert {c.type: c.last_transition_time for c in matched} == {"Ready": NOON, "Matched": ONE}


def test_nothing_changed_is_the_same_list() -> None:
    first = policy_conditions([], "", [], 1, NOON)
    assert policy_conditions([], "", first, 1, ONE) == first
