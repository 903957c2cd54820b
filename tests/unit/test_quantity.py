import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.objects.quantity import QuantityError, amount, format_amount, milli_units, parse_quantity


@pytest.mark.parametrize(
    ("written", "exact"),
    [
        ("0", Fraction(0)),
        ("1", Fraction(1)),
        ("+1", Fraction(1)),
        ("-1", Fraction(-1)),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("100n", Fraction(100, 10**9)),
        ("7u", Fraction(7, 10**6)),
        ("250m", Fraction(1, 4)),
        ("1k", Fraction(1000)),
        ("700G", Fraction(700 * 10**9)),
        ("2T", Fraction(2 * 10**12)),
        ("2P", Fraction(2 * 10**15)),
        ("1E", Fraction(10**18)),
        ("1Ki", Fraction(1024)),
        ("1.5Gi", Fraction(3 * 2**29)),
        ("400000Gi", Fraction(400000 * 2**30)),
        ("1Ei", Fraction(2**60)),
        ("1e3", Fraction(1000)),
        ("1E3", Fraction(1000)),
        ("12e-1", Fraction(12, 10)),
        (4, Fraction(4)),
        (0.1, Fraction(1, 10)),
        (1e3, Fraction(1000)),
    ],
)
def test_reads_what_kubernetes_reads(written: str | float, exact: Fraction) -> None:
    assert parse_quantity(written) == exact


@pytest.mark.parametrize(
    "written",
    [
        *("", " ", "1 Gi", " 1", "1 ", "1gi", "1GI", "1K", "1ki", "1MB", "Gi", ".", "1.2.3", "1e", "e3", "1e3.5"),
        *("1e3Gi", "1Gi3", "--1", "0x10", "1_000", "\u0967", "1,5", "inf", "nan", "None", "1e65", "9" * 129),
    ],
)
def test_refuses_what_kubernetes_refuses_and_says_what_was_written(written: str) -> None:
    with pytest.raises(QuantityError, match="quantity"):
        parse_quantity(written)


@pytest.mark.parametrize("written", [True, None, [], float("inf"), float("nan")])
def test_refuses_what_is_no_number_at_all(written: object) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(written)  # type: ignore[arg-type]


def test_cpu_counts_in_millicores_and_everything_else_in_units_rounded_up() -> None:
    assert amount("cpu", "10m") == 10
    assert amount("cpu", "2.5") == 2500
    assert amount("cpu", 4) == 4000
    assert amount("cpu", "100n") == 1
    assert amount("memory", "1.5Gi") == 1610612736
    assert amount("memory", "100m") == 1
    assert amount("nvidia.com/gpu", "1") == 1
    assert amount("rdma/hca", "1k") == 1000
    assert amount("requests.cpu", "1500m") == 1500


def test_true_is_not_one_even_when_one_was_asked_before() -> None:
    assert amount("pods", 1) == 1
    with pytest.raises(QuantityError):
        amount("pods", True)


def test_an_amount_is_never_negative_and_the_message_names_the_resource() -> None:
    with pytest.raises(QuantityError, match=r"memory: quantity '-1Gi' is negative"):
        amount("memory", "-1Gi")


@pytest.mark.parametrize(
    ("resource", "units", "text"),
    [
        ("cpu", 4010, "4010m"),
        ("cpu", 4000, "4"),
        ("cpu", 0, "0"),
        ("memory", 4 << 30, "4Gi"),
        ("memory", 1536 << 20, "1536Mi"),
        ("memory", 700_000_000_000, "683593750Ki"),
        ("memory", 1025, "1025"),
        ("memory", 0, "0"),
        ("hugepages-2Mi", 1 << 30, "1Gi"),
        ("ephemeral-storage", 1 << 40, "1Ti"),
        ("nvidia.com/gpu", 1024, "1024"),
        ("pods", 110, "110"),
    ],
)
def test_amounts_are_written_canonically(resource: str, units: int, text: str) -> None:
    assert format_amount(resource, units) == text


@given(st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "hugepages-1Gi", "pods"]), st.integers(0, 1 << 62))
def test_what_is_written_is_read_back_exactly(resource: str, units: int) -> None:
    assert amount(resource, format_amount(resource, units)) == units


@given(
    st.integers(0, 10**12),
    st.integers(0, 9),
    st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e2", "E-3"]),
)
def test_decimals_and_suffixes_multiply_exactly(digits: int, places: int, suffix: str) -> None:
    factors = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18, "e2": 100}
    factors |= {f"{letter}i": 1 << (10 * (power + 1)) for power, letter in enumerate("KMGTPE")}
    small = {"n": 9, "u": 6, "m": 3, "E-3": 3}
    factor = Fraction(1, 10 ** small[suffix]) if suffix in small else Fraction(factors[suffix])
    text = str(digits) if not places else f"{digits // 10**places}.{digits % 10**places:0{places}d}"
    assert parse_quantity(text + suffix) == Fraction(digits, 10**places) * factor


@given(st.text("0123456789.+-eEinumkKMGTP ", max_size=12))
def test_any_text_is_either_a_number_or_a_refusal_that_quotes_it(text: str) -> None:
    try:
        parse_quantity(text)
    except QuantityError:
        with pytest.raises(QuantityError, match=re.escape(repr(text))):
            parse_quantity(text)


@pytest.mark.parametrize(("written", "thousandths"), [("1", 1000), ("1m", 1), ("0.5m", 1), ("100n", 1), ("0", 0)])
def test_each_quantity_is_taken_in_as_thousandths_rounded_up(written: str, thousandths: int) -> None:
    assert milli_units(written) == thousandths
