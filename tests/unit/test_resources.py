import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.objects.quantity import QuantityError
from kube.objects.resources import (
    UNBOUNDED,
    add,
    add_into,
    dominant_share,
    fit_count,
    fits,
    format_resources,
    maximum,
    parse_resources,
    scale,
    shortage,
    subtract,
)

vectors = st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "pods"]), st.integers(1, 10**6))


def test_null_is_absent_and_zero_is_dropped_unless_it_means_something() -> None:
    written = {"cpu": None, "memory": "1Gi", "rdma/roce_gdr": 0}
    assert parse_resources(written) == {"memory": 1 << 30}
    assert parse_resources(written, keep_zero=True) == {"memory": 1 << 30, "rdma/roce_gdr": 0}
    assert parse_resources(None) == {}


def test_a_bad_quantity_is_named() -> None:
    with pytest.raises(QuantityError, match="memory: quantity '1 Gi'"):
        parse_resources({"cpu": "1", "memory": "1 Gi"})


def test_a_node_without_a_resource_has_none_of_it() -> None:
    assert not fits({"nvidia.com/gpu": 1}, {"cpu": 64000})
    assert shortage({"nvidia.com/gpu": 1, "cpu": 1000}, {"cpu": 64000}) == {"nvidia.com/gpu": 1}
    assert fit_count({"nvidia.com/gpu": 1}, {"cpu": 64000}) == 0


def test_what_is_not_asked_for_fits_even_on_an_overcommitted_node() -> None:
    assert fits({"cpu": 100}, {"cpu": 200, "memory": -5})
    assert fits({}, {})
    assert fit_count({}, {}) == UNBOUNDED


def test_shortage_is_counted_from_zero_where_a_node_is_overcommitted() -> None:
    assert shortage({"memory": 10}, {"memory": -5}) == {"memory": 10}


def test_the_dominant_share_is_that_of_the_scarcest_resource() -> None:
    assert dominant_share({"cpu": 1000, "nvidia.com/gpu": 4}, {"cpu": 100_000, "nvidia.com/gpu": 8}) == 0.5
    assert dominant_share({"nvidia.com/gpu": 1}, {"cpu": 1}) == float("inf")
    assert dominant_share({}, {}) == 0.0


@given(vectors, vectors)
def test_subtract_undoes_add(left: dict[str, int], right: dict[str, int]) -> None:
    assert subtract(add(left, right), right) == left


@given(vectors, vectors, st.integers(0, 5))
def test_adding_in_place_is_adding_scaled(left: dict[str, int], right: dict[str, int], times: int) -> None:
    total = dict(left)
    add_into(total, right, times)
    assert {k: v for k, v in total.items() if v} == add(left, scale(right, times))


@given(vectors, vectors)
def test_fits_exactly_when_nothing_is_short_and_one_copy_goes_in(need: dict[str, int], free: dict[str, int]) -> None:
    assert fits(need, free) == (not shortage(need, free)) == (fit_count(need, free) >= 1)


@given(vectors.filter(bool), vectors)
def test_the_count_is_the_largest_that_fits(need: dict[str, int], free: dict[str, int]) -> None:
    count = fit_count(need, free)
    assert fits(scale(need, count), free)
    assert not fits(scale(need, count + 1), free)


@given(vectors, vectors)
def test_maximum_covers_both_and_no_more(left: dict[str, int], right: dict[str, int]) -> None:
    both = maximum(left, right)
    assert fits(left, both)
    assert fits(right, both)
    assert all(units in (left.get(name), right.get(name)) for name, units in both.items())


@given(vectors)
def test_written_vectors_read_back(vector: dict[str, int]) -> None:
    assert parse_resources(format_resources(vector)) == vector
