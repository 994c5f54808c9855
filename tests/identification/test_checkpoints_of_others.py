"""Other people's checkpoints are asked which algorithm they run; pickles give tensors alone."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from emulon import cli
from emulon.core.errors import BadShape, EmulonError
from emulon.core.predictor import NotAPredictor, predict_at
from emulon.identification import identify
from emulon.identification.adapters import TextPredictor
from emulon.identification.loading import load_module, load_predictor, load_subject
from emulon.machine.programs import sgd
from emulon.machine.targets.gpt2 import save_gpt2
from emulon.tasks import Linear, SparseLinear

transformers = pytest.importorskip("transformers", reason="pip install 'emulon[hf]'")
EXAMPLE = Path(__file__).parents[2] / "examples" / "public_runs.py"
public_runs = load_module(str(EXAMPLE))

SIZES = {"n_dims": 3, "n_positions": 9, "n_embd": 16, "n_layer": 2, "n_head": 2}


def gpt2_of_theirs():
    """The blocks, the reading in and the reading out that all three codes have, with weights of transformers."""
    torch.manual_seed(0)
    backbone = transformers.GPT2Model(transformers.GPT2Config(n_positions=19, n_embd=16, n_layer=2, n_head=2)).eval()
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return backbone


def written(folder: Path, weights: dict, key: str = "model_state_dict", **model) -> Path:
    """A run of Garg et al.'s or Yang et al.'s code: config.yaml, and state.pt with an optimiser's state."""
    optimiser = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    torch.save({key: weights, "optimizer_state_dict": optimiser.state_dict(), "train_step": 7}, folder / "state.pt")
    curriculum = {"points": {"end": 7}, "loops": {"end": 3}}
    training = {"task": "linear_regression", "task_kwargs": {}, "curriculum": curriculum}
    config = {"model": {"family": "gpt2", **SIZES} | model, "training": training, "out_dir": "../models"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def read_in_and_out(width: int, biased: bool = True):
    return torch.nn.Linear(width, 16, bias=biased), torch.nn.Linear(16, 1, bias=biased)


def last_of(into, backbone, out):
    return lambda tokens: out(backbone(inputs_embeds=into(tokens)).last_hidden_state[:, -1])


def garg(tmp_path):
    """Their run, and what its forward pass says of tokens. Older releases of transformers kept masks as weights."""
    backbone, (into, out) = gpt2_of_theirs(), read_in_and_out(3)
    parts = {"_read_in": into, "_backbone": backbone, "_read_out": out}
    weights = {f"{name}.{key}": one for name, part in parts.items() for key, one in part.state_dict().items()}
    masks = {f"_backbone.h.{i}.attn.{name}": torch.zeros(1) for i in range(2) for name in ("bias", "masked_bias")}
    return written(tmp_path, weights | masks), last_of(into, backbone, out)


def yang(tmp_path):
    """nanoGPT's names, matrices of (out, in), and one decoder three times."""
    backbone, (into, out) = gpt2_of_theirs(), read_in_and_out(3)
    weights = {}
    for name, one in backbone.state_dict().items():
        if name != "wte.weight":
            matrix = one.ndim == 2 and name != "wpe.weight"
            weights[f"_backbone.transformer.{name}"] = one.mT.contiguous() if matrix else one
    for name, part in (("_read_in", into), ("_read_out", out)):
        weights |= {f"{name}.{key}": one for key, one in part.state_dict().items()}

    def forward(tokens):
        state = torch.ones_like(embedded := into(tokens))
        for _ in range(3):
            state = backbone(inputs_embeds=state * embedded).last_hidden_state
        return out(state[:, -1])

    return written(tmp_path, weights, "model", family="gpt2_loop", loop_func="z=f(x*z)"), forward


def raventos(tmp_path):
    """flax's names and matrices of (in, out), no biases in and out, and a coordinate for y alone."""
    backbone, (into, out) = gpt2_of_theirs(), read_in_and_out(4, biased=False)
    arrays = {"_in/kernel": into.weight.mT, "_out/kernel": out.weight.mT, "_h/wpe/embedding": backbone.wpe.weight}
    for name, one in backbone.state_dict().items():
        kind = name.rpartition(".")[2]
        kind = "bias" if kind == "bias" else "scale" if "ln_" in name else "kernel"
        parts = name.split(".")[:-1]
        if parts[0] not in ("wpe", "wte"):
            parts = [f"hs_{parts[1]}", *parts[2:]] if parts[0] == "h" else parts
            arrays["/".join(["_h", *parts, kind])] = one
    np.savez(tmp_path / "params.npz", **{name: one.detach().numpy() for name, one in arrays.items()})
    task = {"n_dims": 3, "n_tasks": 2**20, "noise_scale": 0.25, "task_scale": 1.0}
    model = {"name": "transformer", "n_points": 9, "n_layer": 2, "n_embd": 16, "n_head": 2}
    (tmp_path / "config.json").write_text(json.dumps({"model": model, "task": task}))
    return tmp_path, last_of(into, backbone, out)


def narrow(x, y):
    return x, torch.stack([y, 0 * y, 0 * y], dim=-1)


def wide(x, y):
    return torch.cat([0 * y.unsqueeze(-1), x], dim=-1), torch.cat([y.unsqueeze(-1), 0 * x], dim=-1)


@pytest.mark.parametrize(
    ("run", "tokens_of", "longest", "task"),
    [(garg, narrow, 6, Linear(3)), (yang, narrow, 6, Linear(3)), (raventos, wide, 8, Linear(3, noise=0.25))],
)
def test_a_run_of_theirs_answers_as_their_forward_pass_does(tmp_path, run, tokens_of, longest, task):
    folder, forward = run(tmp_path)
    learner = public_runs.load(folder)
    xs, ys = Linear(3).held_out(0, 4, 7).pairs
    for n in (1, 5):
        rows = [row for i in range(n) for row in tokens_of(xs[:, i], ys[:, i])]
        tokens = torch.stack([*rows, tokens_of(xs[:, n], ys[:, n])[0]], dim=1).float()
        with torch.no_grad():
            wanted = forward(tokens)[:, 0].double()
        torch.testing.assert_close(learner.predict(xs[:, :n], ys[:, :n], xs[:, n]), wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(predict_at(learner, xs, ys, (n,))[:, 0], wanted, atol=1e-5, rtol=1e-5)
    with pytest.raises(BadShape, match="reads 3 features"):
        learner.predict(xs[..., :2], ys, xs[:, 0, :2])
    assert learner.examples == tuple(range(1, longest + 1)) and learner.task == task


def test_a_run_is_identified_by_its_folder_and_a_note_says_that_it_is_a_pickle(tmp_path):
    folder, _ = garg(tmp_path)
    words = [sys.executable, str(EXAMPLE), str(folder), "--datasets", "8"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "none of these" in done.stdout, done.stderr
    assert done.stderr.startswith("note: ") and "is a pickle" in done.stderr and done.stderr.count("\n") == 1
    before = public_runs.load(folder)
    save_file(torch.load(folder / "state.pt", weights_only=True)["model_state_dict"], folder / "model.safetensors")
    (folder / "state.pt").unlink()
    after = public_runs.load(folder)
    assert not after.notes and all(map(torch.equal, before.state_dict().values(), after.state_dict().values()))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["training"] |= {"task": "sparse_linear_regression", "task_kwargs": {"sparsity": 2}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert public_runs.load(folder).task == SparseLinear(3, nonzero=2)


def test_what_a_pickle_holds_beyond_tensors_or_describes_another_model_is_not_loaded(tmp_path):
    folder, _ = garg(tmp_path)
    torch.save({"model_state_dict": Path}, folder / "state.pt")
    with pytest.raises(NotAPredictor, match="is not loaded"):
        public_runs.load(folder)
    (folder / "state.pt").unlink()
    with pytest.raises(NotAPredictor, match=r"neither model\.safetensors nor state\.pt"):
        public_runs.load(folder)
    with pytest.raises(NotAPredictor, match=r"model\.family is neither gpt2 nor gpt2_loop"):
        public_runs.load(written(tmp_path, {}, family="lstm"))


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
