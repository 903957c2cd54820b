import pytest

from dispatcher.documents import digits
from dispatcher.identity import may_be_id_of, mint_job_id


@pytest.mark.parametrize("name", ["train", "a", "7b-tune", "Über", "x" * 63, "llama-" + "7" * 30 + "-sft", "-"])
def test_a_minted_id_is_of_the_name_it_was_minted_for(name: str) -> None:
    assert may_be_id_of(mint_job_id(name), name)


@pytest.mark.parametrize(
    "stamped", ["", "train", "train-", "-bcdfghjklm", "eval-bcdfghjklm", "train-bcdfghjkl", "train-aeiou01319", "../x"]
)
def test_what_was_not_minted_for_the_name_is_no_id_of_it(stamped: str) -> None:
    assert not may_be_id_of(stamped, "train")


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("12", 12), ("9" * 18, 10**18 - 1), ("9" * 19, None), ("9" * 5000, None), ("\u00b2", None)]
    + [(text, None) for text in ("", "-1", " 1", "1 ", "1_0", "\uff11", "1\n", "0x1")],
)
def test_digits_reads_plain_numbers_only(text: str, number: int | None) -> None:
    assert digits(text) == number
