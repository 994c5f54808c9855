"""Other people's checkpoints are asked which algorithm they run; pickles give tensors alone."""

import json
from pathlib import Path

import pytest
import torch
import yaml

from emulon import cli
from emulon.core.errors import BadShape, EmulonError
from emulon.core.predictor import NotAPredictor, predict_at
from emulon.identification import identify
from emulon.identification.adapters import TextPredictor, convert, load_garg
from emulon.identification.loading import load_predictor, load_subject
from emulon.machine.programs import sgd
from emulon.machine.targets.gpt2 import save_gpt2
from emulon.tasks import Linear, SparseLinear

transformers = pytest.importorskip("transformers", reason="pip install 'emulon[hf]'")

SIZES = {"n_dims": 3, "n_positions": 9, "n_embd": 16, "n_layer": 2, "n_head": 2}


class TransformerModel(torch.nn.Module):
    """The parts of their model, under their names."""

    def __init__(self):
        super().__init__()
        shape = transformers.GPT2Config(n_positions=18, n_embd=16, n_layer=2, n_head=2)
        self._read_in = torch.nn.Linear(3, 16)
        self._backbone = transformers.GPT2Model(shape)
        self._read_out = torch.nn.Linear(16, 1)


@pytest.fixture
def theirs(tmp_path) -> Path:
    """A run of theirs: config.yaml, state.pt with weights, masks of an older release, and an optimiser's state."""
    torch.manual_seed(0)
    model = TransformerModel()
    masks = {f"_backbone.h.{i}.attn.{name}": torch.zeros(1) for i in range(2) for name in ("bias", "masked_bias")}
    optimiser = torch.optim.Adam(model.parameters())
    state = {"model_state_dict": model.state_dict() | masks, "optimizer_state_dict": optimiser.state_dict()}
    torch.save(state | {"train_step": 7}, tmp_path / "state.pt")
    training = {"task": "linear_regression", "task_kwargs": {}, "curriculum": {"points": {"end": 7}}}
    config = {"model": {"family": "gpt2", **SIZES}, "training": training, "out_dir": "../models"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def test_a_checkpoint_in_garg_et_als_layout_answers_as_their_forward_pass_does(theirs):
    learner = load_garg(theirs)
    assert learner.examples == (1, 2, 3, 4, 5, 6) and load_subject(str(theirs)).task == Linear(3)
    xs, ys = Linear(3).held_out(0, 4, 7).pairs
    # x₁, y₁, x₂, …, one token after the other, and the answer at the last x.
    for n in (1, 5):
        rows = [row for i in range(n) for row in (xs[:, i], torch.stack([ys[:, i], *[0 * ys[:, i]] * 2], dim=-1))]
        tokens = torch.stack([*rows, xs[:, n]], dim=1).float()
        hidden = learner._backbone(inputs_embeds=learner._read_in(tokens)).last_hidden_state
        wanted = learner._read_out(hidden[:, -1])[:, 0].double()
        torch.testing.assert_close(learner.predict(xs[:, :n], ys[:, :n], xs[:, n]), wanted, atol=1e-5, rtol=0)
        torch.testing.assert_close(predict_at(learner, xs, ys, (n,))[:, 0], wanted, atol=1e-5, rtol=0)
    with pytest.raises(BadShape, match="reads 3 features"):
        learner.predict(xs[..., :2], ys, xs[:, 0, :2])


def test_it_is_identified_by_its_folder_and_the_user_is_told_to_convert_the_pickle(theirs, capsys):
    assert cli.main(["identify", str(theirs), "--datasets", "8"]) == 0
    out, err = capsys.readouterr()
    assert "none of these" in out and "linear functions of 3 features" in out
    assert err.startswith("note: ") and "convert(" in err and err.count("\n") == 1
    before = load_garg(theirs)
    assert convert(theirs).name == "model.safetensors"
    (theirs / "state.pt").unlink()
    after = load_garg(theirs)
    assert not after.notes and all(map(torch.equal, before.state_dict().values(), after.state_dict().values()))


def test_what_a_pickle_holds_beyond_tensors_is_not_loaded(theirs):
    torch.save({"model_state_dict": Path}, theirs / "state.pt")
    with pytest.raises(NotAPredictor, match="is not loaded"):
        load_garg(theirs)
    (theirs / "state.pt").unlink()
    with pytest.raises(NotAPredictor, match=r"neither model\.safetensors nor state\.pt"):
        load_garg(theirs)
    torch.save({"weight": torch.zeros(2)}, theirs / "model_100.pt")
    with pytest.raises(NotAPredictor, match=r"are not those of its config\.yaml"):
        load_garg(theirs)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": {"family": "lstm"}}, "model.family is not gpt2"),
        ({"model": {"family": "gpt2", **SIZES, "n_head": "two"}}, "model.n_head is 'two'"),
    ],
)
def test_a_configuration_that_describes_another_model_is_refused(theirs, change, said):
    (theirs / "config.yaml").write_text(yaml.safe_dump(change))
    with pytest.raises(NotAPredictor, match=said):
        load_garg(theirs)


def test_their_tasks_become_ours(theirs):
    learner = load_garg(theirs)
    learner.config["training"] |= {"task": "sparse_linear_regression", "task_kwargs": {"sparsity": 2}}
    assert learner.task == SparseLinear(3, nonzero=2)
    learner.config["training"]["task"] = "linear_classification"
    with pytest.raises(EmulonError, match="--task"):
        _ = learner.task


def tokenizer():
    """Every printable character is a token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    letters = {chr(code): i for i, code in enumerate([10, *range(32, 127)])}
    made = Tokenizer(models.WordLevel(letters, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.fixture(scope="module")
def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=96, n_positions=256, n_embd=16, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config)


def test_a_random_gpt2_is_asked_in_words_and_is_none_of_these(gpt2, tmp_path, capsys):
    gpt2.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    capsys.readouterr()
    assert cli.main(["identify", str(tmp_path), "--datasets", "6", "--points", "5"]) == 0
    out, err = capsys.readouterr()
    assert "none of these" in out and "linear functions of 2 features" in out and not err


def test_the_prompt_is_the_template_and_the_answer_always_a_number(gpt2):
    predictor = TextPredictor(gpt2, tokenizer(), "{x} -> {y}|", digits=1)
    assert predictor.prompt([[1.0, -2.04]], [3.16], [0.5, 0.0]) == "1.0 -2.0 -> 3.2|0.5 0.0 ->"
    xs, ys = Linear(2).held_out(0, 5, 4).pairs
    answers = predictor.predict(xs, ys, xs[:, 0])
    assert answers.shape == (5,) and torch.isfinite(answers).all()
    torch.testing.assert_close(answers, answers.mul(10).round() / 10)
    # Padding on the left changes nothing.
    alone = [predictor.predict(xs[i : i + 1], ys[i : i + 1], xs[i : i + 1, 0]) for i in range(5)]
    torch.testing.assert_close(torch.cat(alone), answers)
    with pytest.raises(BadShape, match="where this model reads 256"):
        predictor.predict(*(torch.ones(1, 40, *more, dtype=torch.float64) for more in ((2,), ())), xs[:1, 0])
    with pytest.raises(EmulonError, match=r"one {x} and, behind it, one {y}"):
        TextPredictor(gpt2, tokenizer(), "{y} = f({x})")


class Copycat(torch.nn.Module):
    """Answers with the last target that it was shown, character by character."""

    def __init__(self, config):
        super().__init__()
        self.config, self.device = config, torch.device("cpu")

    def forward(self, input_ids, attention_mask):
        letters = tokenizer()
        scores = torch.zeros(len(input_ids), 1, self.config.vocab_size)
        for row, (ids, mask) in enumerate(zip(input_ids, attention_mask, strict=True)):
            *_, last, asked = letters.decode(ids[mask.bool()]).split("y =")
            goal = f"{last.partition(chr(10))[0]}\n"
            scores[row, 0, letters.convert_tokens_to_ids(goal[len(asked)])] = 1
        return transformers.modeling_outputs.CausalLMOutput(logits=scores)


def test_a_model_that_repeats_the_last_target_is_identified(gpt2):
    found = identify(TextPredictor(Copycat(gpt2.config), tokenizer()), Linear(2), datasets=12, points=5)
    assert found.algorithm == "previous target" and found.nearest.unexplained.high < 1e-4


def test_a_compiled_checkpoint_is_given_its_embeddings(tmp_path):
    machine = sgd(2, 5, 0.05).compile()
    save_gpt2(machine, tmp_path)
    predictor = load_predictor(tmp_path)
    xs, ys = Linear(2).held_out(0, 6, 5).pairs
    torch.testing.assert_close(predict_at(predictor, xs, ys, (1, 4)), machine.predict(xs, ys)[:, [1, 4]])
    assert load_subject(str(tmp_path)).task == Linear(2)


def test_a_checkpoint_without_its_tokenizer_is_refused_in_one_line(gpt2, tmp_path, capsys):
    gpt2.save_pretrained(tmp_path)
    assert "model_type" in json.loads((tmp_path / "config.json").read_text())
    capsys.readouterr()
    assert cli.main(["identify", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "was it saved beside the model?" in err and err.count("\n") == 1
