"""Token programs: how they print, what they refuse, and one that sorts, in Hugging Face's own class."""

import numpy as np
import pytest
import torch

from emulon.core.errors import BadProgram, BadShape
from emulon.machine import Back, TokenProgram, compile_llama
from emulon.machine.instruction import AffineForm

MOST = 16
NUMBERS = {str(v): float(v) for v in range(MOST)}


def sorting():
    """`<s> 7 3 9 =` is continued by 3 7 9 and the end: the smallest number of the text above the one before."""
    program = TokenProgram("sorting", ["<s>", "</s>", "<pad>", "=", *NUMBERS], context=256)
    number = program.given("number", dict.fromkeys(NUMBERS, 1.0))
    here = program.given("here", {word: [float(u == v) for u in range(MOST)] for word, v in NUMBERS.items()})
    above = {word: [float(u > v) for u in range(MOST)] for word, v in NUMBERS.items()}
    above = program.given("above", above | {"=": [1.0] * MOST})
    equals = program.given("equals", {"=": 1.0})
    share, seen, open_, first = (program.register(name, MOST) for name in ("share", "seen", "open", "first"))
    after = program.register("after")
    program.read(share, here, at=program.flagged(number))
    program.read(after, equals, at=program.flagged(equals))
    program.gate(seen, 64.0 * share, program.one)
    program.gate(seen, 64.0 * share - full(1.0), program.one, -1.0)
    program.gate(open_, above, seen)
    below = torch.tensor([[float(u < v) for u in range(MOST)] for v in range(MOST)], dtype=torch.float64)
    program.gate(first, full(1.0) - open_.map(below, (MOST, 1), "smaller ones"), open_)
    values = torch.arange(MOST, dtype=torch.float64)[None]
    left = first.map(torch.ones(1, MOST, dtype=torch.float64), (1, 1), "left")
    program.decode(NUMBERS, first.map(values, (1, 1), "the first"), when=left)
    program.say({"</s>": ()}, when=after - left)
    return program


def full(value):
    return AffineForm((MOST, 1), {}, torch.full((MOST,), value, dtype=torch.float64), f"{value:g}")


@pytest.fixture(scope="module")
def sorter():
    transformers = pytest.importorskip("transformers", reason="needs transformers (pip install 'emulon[hf]')")
    compiled = compile_llama(sorting())
    config = {name: value for name, value in compiled.config.items() if name != "architectures"}
    network = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    network.load_state_dict(compiled.state)
    return compiled, network


@pytest.mark.parametrize("count", [1, 2, 7, 16, 40])
def test_a_program_that_is_no_descent_sorts(sorter, count):
    compiled, network = sorter
    program, draw = compiled.program, np.random.default_rng(count)
    values = draw.integers(0, MOST, size=count)
    text = torch.tensor([[program.numbers[word] for word in ("<s>", *map(str, values), "=")]])
    written = network.generate(text, attention_mask=torch.ones_like(text), do_sample=False, max_new_tokens=MOST + 2)
    words = [program.words[token] for token in written[0, text.shape[1] :]]
    assert words == [*map(str, sorted(set(values.tolist()))), "</s>"]


def test_a_program_prints_its_registers_instructions_and_words():
    lines = str(sorting()).splitlines()
    assert lines[0] == "sorting: 20 words, 6 instructions" and lines[1].split() == ["number", "given"]
    assert lines[-8] == "  1  read  share ← here @ where number = +"
    assert lines[-1] == "  says </s> where after − left"


def test_norms_are_exactly_the_identity(sorter):
    _, network = sorter
    stream = network.model.embed_tokens(torch.tensor([[0, 4, 3]])).detach()
    stream[..., 1:] = 1e3 * torch.randn(stream[..., 1:].shape, generator=torch.Generator().manual_seed(0))
    out = network.model.layers[0].input_layernorm(stream)
    assert torch.equal(out[..., 1:], stream[..., 1:]) and bool((out[..., 0] == 1).all())


def test_what_cannot_be_compiled_is_refused_in_one_line():
    program = TokenProgram("refused", ["<s>", "a", "b"], context=64)
    letter = program.given("letter", {"a": [1.0, 0.0], "b": [0.0, 1.0]})
    with pytest.raises(BadProgram, match="already has a register called letter"):
        program.register("letter")
    with pytest.raises(BadProgram, match="values of one size"):
        program.given("other", {"a": 1.0, "c": 1.0})
    with pytest.raises(BadShape, match="has shape"):
        program.read(program.register("three", 3), letter, at=Back(1))
    with pytest.raises(BadProgram, match="target has to be a register"):
        program.add(2.0 * letter, letter)
    with pytest.raises(BadProgram, match="words have to be distinct"):
        TokenProgram("twice", ["<s>", "a", "a"], context=64)
    program.given("start too", {"<s>": 1.0})
    with pytest.raises(BadProgram, match="not zero at <s>"):
        compile_llama(program)


def test_reads_that_need_more_than_one_head_width_are_refused():
    program = TokenProgram("wide", ["<s>", "a"], context=64)
    wide = program.given("wide", {"a": [1.0] * 65})
    program.read(program.register("copy", 65), wide, at=Back(1))
    with pytest.raises(BadProgram, match="does not fit into one head of 64"):
        compile_llama(program)
