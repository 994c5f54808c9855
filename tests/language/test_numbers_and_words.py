"""Numbers read back as written, refusals in one line, and the tokenizer as Hugging Face opens it."""

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulon.core.errors import EmulonError, OutOfDomain
from emulon.language.vocabulary import LARGE, SMALL, Vocabulary, decode, encode, encode_units

SMALL_WORDS = Vocabulary(SMALL)


def by_hand(words):
    """The value of three words by decimal arithmetic on their digits alone."""
    head, middle, low = words
    return Decimal(head) + Decimal(middle) / 10**5 + Decimal(low) / 10**8


@given(st.integers(-1_999_000_000, 1_999_000_000))
def test_every_multiple_of_a_hundred_millionth_reads_back(units):
    words = encode_units(units)
    assert by_hand(words) == Decimal(units) / 10**8 and decode(words) == units
    assert all(word in SMALL_WORDS for word in words) and all(abs(int(word)) <= 500 for word in words[1:])


@given(st.floats(-19.99, 19.99))
def test_a_float_is_written_to_its_nearest_multiple(value):
    assert abs(Fraction(by_hand(encode(value))) - Fraction(value)) <= Fraction(1, 2 * 10**8)


def test_groups_that_are_not_balanced_are_read():
    assert decode(("+0.32", "-488", "+484")) == decode(("+0.31", "+512", "+484")) == 31512484
    assert decode(("-0.01", "+999", "-999")) == -1_000_000 + 999_000 - 999


@pytest.mark.parametrize("value", [20.0, -20.0, 19.991, 1e300, math.inf, -math.inf, math.nan])
def test_what_cannot_be_written_is_refused(value):
    with pytest.raises(OutOfDomain):
        encode(value)


@pytest.mark.parametrize(
    "words",
    [
        "+0.3 -488 +484",
        "0.32 -488 +484",
        "+0.32 -488",
        "+0.32 488 +484",
        "+20.00 +000 +000",
        "+0.32 -000 +001",
        "-0.00 +001 +000",
        "+0.32 -4888 +484",
        "+٣.32 +000 +000",
        "+0.32 +000 +000 +000",
        "w1 +0.32 +000",
        "",
    ],
)
def test_what_is_no_number_is_refused_in_one_line(words):
    with pytest.raises(EmulonError) as refused:
        decode(words.split())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("capacity", [SMALL, LARGE])
def test_words_are_distinct_and_found_by_their_text(capacity):
    words = Vocabulary(capacity)
    assert len(words) == len({token.text for token in words.tokens}) and not any(" " in t.text for t in words.tokens)
    assert words[f"#{capacity.samples}"].kind == "row" and f"#{capacity.samples + 1}" not in words
    assert words["-3.07"].number == -307 and words["step:-1"].number == -1 and words["prox^24"].number == 24


def test_hugging_face_opens_the_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers")
    SMALL_WORDS.write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    text = "until:3 rate +0.40 +000 -001\n#1 y +1.49 -450 +426 x1 +0.00 +000 +000\nstep:0 w1 -1.00 +000 +000"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer(text)["input_ids"] == SMALL_WORDS.encode(text) and len(tokenizer) == len(SMALL_WORDS)
    assert tokenizer.decode(SMALL_WORDS.encode(text), skip_special_tokens=True) == " ".join(text.split())
    assert SMALL_WORDS.decode(SMALL_WORDS.encode(text)) == " ".join(text.split())
    padded = tokenizer(["w1", "w1 w2"], padding=True)["input_ids"]
    assert padded[0] == [tokenizer.pad_token_id, *SMALL_WORDS.encode("w1")]
    assert tokenizer.eos_token_id == SMALL_WORDS.numbers["</s>"] and tokenizer("nonsense")["input_ids"][1] == 3
