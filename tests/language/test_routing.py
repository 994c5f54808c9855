"""What the interpreter means, in float64 without weights; what its heads read of anything else, bounded and seen."""

import math

import numpy as np
import pytest
import torch
from float_reading import iterates

from emulon.certify.transcript_checker import read
from emulon.core.errors import BadProgram
from emulon.language.interpreter import interpreter
from emulon.language.methods import as_method, known_methods
from emulon.language.prompt import prompt, text_of
from emulon.language.vocabulary import SMALL
from emulon.machine.targets.llama import compile_llama
from emulon.machine.token_error import Meaning, routing
from emulon.machine.token_program import Back, Matching

DRAW = np.random.default_rng(3)
NEAREST = 5  # tokens between two weights of one name: step:-1 w1 and step:0 w1 of one feature


@pytest.fixture(scope="module")
def compiled():
    return compile_llama(interpreter(SMALL))


def words_of(name, n, d, steps):
    x = DRAW.normal(size=(n, d)).clip(-2, 2)
    y = x @ DRAW.uniform(-1, 1, size=d) + 0.1 * DRAW.normal(size=n)
    method = known_methods()[name](steps=steps)
    y = np.where(y > 0, 1.0, -1.0) if as_method(method).descent.loss.link.name == "margin" else y
    text = text_of(prompt(method, x, y))
    return text, ["<s>", *text.split()]


@pytest.mark.parametrize(("name", "n", "d"), [("heavy_ball", 2, 1), ("logistic_lasso", 3, 2)])
def test_the_program_without_weights_writes_the_iterates(compiled, name, n, d):
    text, words = words_of(name, n, d, steps=2)
    while words[-1] != "</s>":
        words.append(Meaning(compiled.program, words).next_word)
    written = np.array(read(" ".join(words[1:-1])).written) / 1e8
    assert np.abs(written - iterates(text, 2)).max() < 1e-8  # the last digit, and what it does to the next step


def test_every_head_reads_less_of_other_tokens_than_is_proved(compiled):
    transformers = pytest.importorskip("transformers", reason="needs transformers (pip install 'emulon[hf]')")
    config = {name: value for name, value in compiled.config.items() if name != "architectures"}
    network = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config, attn_implementation="eager")).eval()
    network.load_state_dict(compiled.state)
    _, words = words_of("squared_hinge", 4, 3, steps=2)
    for _ in range(60):
        words.append(Meaning(compiled.program, words).next_word)
    meaning = Meaning(compiled.program, words)
    with torch.no_grad():
        tokens = torch.tensor([[compiled.program.numbers[word] for word in words]])
        seen = network(tokens, output_attentions=True, output_hidden_states=True)
    bounds = iter(routing(compiled, NEAREST))
    for layer, weights in zip(compiled.layers, seen.attentions, strict=True):
        for head, where in enumerate(heads_of(compiled, layer)):
            if not isinstance(where, Back | Matching):
                continue
            bound, meant = next(bounds), meaning.weights(where) > 0
            meant[:, 0] |= isinstance(where, Matching)
            other = (weights[0, head].double() * ~meant).sum(dim=1)
            begin = where.places if isinstance(where, Back) else 0
            assert bound.place == str(where) and bound.leak < 1e-11
            assert other[begin:].max() <= bound.leak, bound
    assert next(bounds, None) is None
    # What flags and codes hold in the model is what the program means, to the last bit but for a leak.
    names = "first, middle, last weight, name of, in row, in step, more, ends, rows left, h, row wh"
    for name in names.split(", "):
        held = seen.hidden_states[-2][0, 16:, compiled.layout.slots[name]].double()
        assert (held - meaning.registers[name][16:]).abs().max() < 1e-9, name
    structure = [i for i, word in enumerate(words) if i > words.index("step:0") and word[0] in "sw@"]
    said = seen.logits[0].argmax(dim=-1)
    assert [compiled.program.words[said[i - 1]] for i in structure[4:]] == [words[i] for i in structure[4:]]


def heads_of(compiled, layer):
    from emulon.machine.token_layers import Attention

    return Attention(compiled.layout, layer.reads).heads


def test_the_bounds_follow_their_terms(compiled):
    near, far = routing(compiled, NEAREST), routing(compiled, 3 * NEAREST)
    for one, other in zip(near, far, strict=True):
        assert other.leak <= one.leak and other.gap >= one.gap and math.isfinite(one.leak)
    assert max(one.leak for one in routing(compiled, 1)) == math.inf  # neighbours are not told from each other
    codes = [one for one in near if one.place.startswith("where ")]
    assert codes and all(95.9 < one.gap < 96.0 for one in codes)
    backs = {one.place: one.gap for one in near if one.place.endswith(" back")}
    lost = [1 - math.cos(10.0 ** (-0.625 * pair)) for pair in range(8)]
    assert backs["3 back"] == pytest.approx(128 * sum(lost), rel=0.05) and backs["3 back"] < 128 * sum(lost)


def test_a_text_of_other_words_has_no_meaning(compiled):
    for words in ([], ["w1"], ["<s>", "w99"]):
        with pytest.raises(BadProgram, match="begins with <s>"):
            Meaning(compiled.program, words)
