"""The learners compute what their docstrings say, on the library's own attention."""

import pytest
import torch

from emulon.attention import Trace
from emulon.core.errors import BadShape, EmulonError
from emulon.models import AlgoFormer, Learner, Looped, Standard
from emulon.models.block import BlockShape, Decoder
from emulon.models.learner import loop
from emulon.tasks import Linear, at_step

SIZES = {"width": 16, "heads": 2}


def make(name: str, features: int = 3, tokens: int = 13, **options):
    torch.manual_seed(0)
    if name in ("looped", "algoformer"):
        options = {"loops": 4, "window": 2} | options
    if name == "standard":
        options = {"layers": 2} | options
    return Learner.registry[name](features + 1, 1, tokens, **SIZES, **options)


@pytest.mark.parametrize("name", ["standard", "looped", "algoformer"])
def test_the_fused_attention_agrees_with_the_traced_one(name):
    tokens = torch.randn(4, 13, 4)
    plain, fused = make(name, fused=False), make(name, fused=True)
    torch.testing.assert_close(plain(tokens), fused(tokens), atol=1e-6, rtol=1e-5)
    for learner in (plain, fused):
        learner.loss(tokens, torch.zeros(4, 7, 1), lambda states: states[..., 0::2, :]).backward()
    for a, b in zip(plain.parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["standard", "looped", "algoformer"])
def test_no_answer_depends_on_a_later_token(name):
    learner, tokens = make(name), torch.randn(2, 13, 4)
    changed = tokens.clone()
    changed[:, 8:] += 1
    before, after = learner(tokens), learner(changed)
    assert torch.equal(before[:, :8], after[:, :8]) and not torch.equal(before[:, 8:], after[:, 8:])


@pytest.mark.parametrize("name", list(Learner.registry))
def test_a_learner_takes_as_many_examples_as_fit_before_a_query(name):
    learner = make(name)
    assert learner.examples == (1, 2, 3, 4, 5, 6)
    assert learner.predict(torch.randn(2, 5, 3), torch.randn(2, 5), torch.randn(2, 4, 3)).dtype == torch.float64


def test_predict_reads_the_prompt_it_was_trained_on():
    task, learner = Linear(features=3, points=7), make("standard")
    prompts = task.sample(at_step(torch.Generator(), 0, 0), 5)
    xs, ys = prompts.tokens[:, 0::2, 1:], prompts.targets[..., 0]
    asked = task.asked(learner(prompts.tokens))[:, 4, 0].double()
    torch.testing.assert_close(learner.predict(xs[:, :4], ys[:, :4], xs[:, 4]), asked, atol=1e-6, rtol=1e-6)


def test_the_decoder_is_gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=13, vocab_size=3)
    theirs = transformers.GPT2Model(config).eval()
    ours = make("standard")
    with torch.no_grad():
        theirs.wpe.weight.copy_(ours.position)
        for block, copy in zip(ours.decoder.blocks, theirs.h, strict=True):
            for mine, other in (
                (block.attention_norm, copy.ln_1),
                (block.mlp_norm, copy.ln_2),
                (ours.decoder.last_norm, theirs.ln_f),
            ):
                other.weight.copy_(mine.weight)
                other.bias.copy_(mine.bias)
            for mine, other in (
                (block.attention.to_qkv, copy.attn.c_attn),
                (block.attention.merge, copy.attn.c_proj),
                (block.widen, copy.mlp.c_fc),
                (block.narrow, copy.mlp.c_proj),
            ):
                other.weight.copy_(mine.weight.mT)
                other.bias.copy_(mine.bias)
    tokens = torch.randn(3, 13, 4)
    said = theirs(inputs_embeds=ours.read_in(tokens)).last_hidden_state
    torch.testing.assert_close(ours.decoder(ours.embed(tokens)), said, atol=1e-5, rtol=1e-5)


def test_a_looped_learner_applies_its_decoder_to_state_plus_input():
    learner = make("looped")
    embedded = learner.embed(torch.randn(2, 13, 4))
    state, seen = torch.zeros_like(embedded), []
    for _ in range(4):
        state = learner.decoder(state + embedded)
        seen.append(state)
    torch.testing.assert_close(learner.states(embedded), torch.stack(seen[2:]))


def test_an_algoformer_finishes_every_loop_count_of_its_window():
    learner = make("algoformer")
    embedded = learner.embed(torch.randn(2, 13, 4))
    prepared = state = learner.pre(embedded)
    seen = []
    for _ in range(4):
        state = learner.body(state + prepared)
        seen.append(learner.post(state))
    torch.testing.assert_close(learner.states(embedded), torch.stack(seen[2:]))


def test_an_algoformer_without_injection_is_eq_2_as_printed():
    learner = make("algoformer", inject=False)
    embedded = learner.embed(torch.randn(2, 13, 4))
    state = learner.pre(embedded)
    seen = []
    for _ in range(4):
        state = learner.body(state)
        seen.append(learner.post(state))
    torch.testing.assert_close(learner.states(embedded), torch.stack(seen[2:]))
    with pytest.raises(EmulonError, match="by injection alone"):
        make("looped", inject=False)


def test_the_loss_is_the_mean_over_loop_counts_of_their_errors():
    learner, tokens, targets = make("looped"), torch.randn(2, 13, 4), torch.randn(2, 13, 1)
    said = learner.read_out(learner.states(learner.embed(tokens)))
    by_hand = torch.stack([(answer - targets).square().mean() for answer in said]).mean()
    torch.testing.assert_close(learner.loss(tokens, targets, lambda states: states), by_hand)
    first = torch.zeros(13)
    first[:1] = 1
    weighted = learner.loss(tokens, targets, lambda states: states, first)
    torch.testing.assert_close(weighted, (said[:, :, 0] - targets[:, 0]).square().mean())


def test_more_loops_than_trained_with_can_be_run():
    learner, tokens = make("algoformer"), torch.randn(2, 13, 4)
    said = learner.read_out(learner.states(learner.embed(tokens)))[-1]
    torch.testing.assert_close(learner(tokens), said)  # an answer is that of the last loop count
    learner.loops = 9
    assert not torch.equal(learner(tokens), said)


def test_every_attention_of_the_plain_path_leaves_a_trace():
    with Trace() as trace:
        make("standard")(torch.randn(1, 5, 4))
    assert [record.name for record in trace.records] == ["decoder.0.attention", "decoder.1.attention"]
    assert trace["decoder.1.attention"].weights.triu(1).abs().max() == 0


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(BadShape, match="at most 13"):
        make("standard")(torch.randn(1, 14, 4))
    with pytest.raises(BadShape, match="multiple"):
        Standard(4, 1, 5, width=10, heads=3)
    with pytest.raises(BadShape, match="learners of y from x"):
        Standard(4, 3, 5, **SIZES, layers=1).predict(torch.randn(2, 3), torch.randn(2), torch.randn(3))
    for model in (Looped, AlgoFormer):
        with pytest.raises(EmulonError, match="at least 1"):
            model(4, 1, 5, **SIZES, loops=0)


@pytest.mark.parametrize(("name", "layers"), [("standard", 2), ("looped", 4), ("algoformer", 6)])
def test_hidden_states_are_those_of_every_layer_and_the_last_ones_give_the_answer(name, layers):
    """Looped: one block, four turns; AlgoFormer: pre, four turns, post."""
    learner = make(name)
    xs, ys = torch.randn(3, 5, 3), torch.randn(3, 5)
    states = learner.hidden_states(xs, ys)
    assert states.shape == (layers + 1, 3, 9, 16)
    last = (learner.post if name == "algoformer" else learner.decoder).last_norm(states[-1])
    answers = learner.read_out(last)[:, 0::2, 0].double()
    expected = learner(learner._prompt(xs, ys[:, :4]))[:, 0::2, 0].double()
    torch.testing.assert_close(answers, expected, atol=1e-6, rtol=1e-6)
    changed = ys.clone()
    changed[:, 2] += 1
    assert torch.equal(states[:, :, :5], learner.hidden_states(xs, changed)[:, :, :5])
    assert torch.equal(learner.hidden_states(xs, ys), states), "a hook was left behind"


class Times(Decoder):
    """state ← factor·state, in place of blocks."""

    def __init__(self, factor: float) -> None:
        torch.nn.Module.__init__(self)
        self.factor = torch.nn.Parameter(torch.tensor(factor))

    def forward(self, x, visible=None):
        return self.factor * x


def test_gradients_go_through_the_loops_of_the_window_and_no_earlier_ones():
    """Five times a factor of 2, of which the last two count: d(a²·8)/da = 32, and not d(a⁵)/da = 80."""
    decoder, nothing = Times(2.0), torch.zeros(1, 1, 1)
    states = loop(decoder, torch.ones(1, 1, 1), nothing, 5, 2)
    assert states.flatten().tolist() == [16.0, 32.0]
    (slope,) = torch.autograd.grad(states[-1].sum(), decoder.factor)
    assert slope.item() == 32.0


@pytest.mark.parametrize("layers", [2, 8])
def test_what_is_added_to_the_stream_begins_smaller_the_deeper_a_decoder_is(layers):
    """With 2·layers independent parts of 1/√(2·layers) each the stream's variance does not depend on the depth."""
    torch.manual_seed(0)
    decoder = Decoder(BlockShape(width=64, heads=2), layers)
    sizes = torch.tensor([[matrix.detach().std() for matrix in block.matrices] for block in decoder.blocks]).mean(dim=0)
    into, out = sizes[[0, 2]], sizes[[1, 3]]
    torch.testing.assert_close(into, torch.full((2,), 0.02), rtol=0.03, atol=0.0)
    torch.testing.assert_close((out / into).square() * 2 * layers, torch.ones(2), rtol=0.06, atol=0.0)


def test_blocks_may_begin_as_the_identity():
    x = torch.randn(2, 5, 16)
    block = Decoder(BlockShape(width=16, heads=2, zero_output=True), 2).blocks[0]
    assert torch.equal(block(x), x)


@pytest.mark.parametrize("silent", ["merge", "narrow"])
def test_a_share_of_what_either_half_of_a_block_adds_is_dropped_in_training(silent):
    torch.manual_seed(0)
    block, x = Decoder(BlockShape(width=32, heads=2, dropout=0.25, init=0.5), 1).blocks[0], torch.randn(16, 9, 32)
    with torch.no_grad():
        (block.attention.merge if silent == "merge" else block.narrow).weight.zero_()
    left_out = (block.train()(x) == x).double().mean().item()
    assert left_out == pytest.approx(0.25, abs=0.03) and not (block.eval()(x) == x).any()
