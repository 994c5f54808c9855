# %% [markdown]
# # Which algorithm does my model run?
#
# You have a model that reads examples (x₁, y₁), …, (xₙ, yₙ) and a query x, and answers with a number. `identify` asks it about
# fresh datasets and compares its answers with those of some twenty algorithms (least squares, ridge, lasso, gradient descent,
# Newton, nearest neighbours, kernels, …), each with the parameters that bring it nearest. Three examples, each complete.

# %%
# %pip install -q 'emulon[hf]'

# %% [markdown]
# ## A transformer of your own
#
# Any `torch.nn.Module` will do. What it cannot know is how your prompts are written, and `adapter=` says that: here each token is
# a row [x, y], the last one with y = 0, and the answer is the output at the last token. Data come in the model's dtype, on its
# device, and the model is asked in eval mode.

# %%
import torch
from torch import nn

from emulon.identification import identify
from emulon.tasks import Linear


class LinearAttention(nn.Module):
    """One step of gradient descent, as one linear attention layer can do it."""

    def __init__(self, step_size):
        super().__init__()
        self.step_size = nn.Parameter(torch.tensor(step_size))

    def forward(self, prompt):  # (B, n + 1, d + 1)
        x, y = prompt[..., :-1], prompt[..., -1]
        scores = x @ x.transpose(1, 2) / (prompt.shape[1] - 1)
        return self.step_size * (scores @ y.unsqueeze(-1))  # (B, n + 1, 1)


model = LinearAttention(step_size=0.4)
found = identify(model, Linear(features=4), adapter="rows", datasets=64, points=16)
print(found.algorithm, {name: round(value, 3) for name, value in found.parameters.items()})

# %% [markdown]
# ```output
# gradient descent {'steps': 1, 'step_size': 0.4}
# ```

# %% [markdown]
# The layouts that have a name:
#
# | `adapter=` | what `forward` is given, for n examples of d features |
# |---|---|
# | `"rows"` | (B, n + 1, d + 1): [x₁, y₁], …, [x, 0] |
# | `"rows, y first"` | (B, n + 1, d + 1): [y₁, x₁], …, [0, x] |
# | `"tokens"` | (B, 2n + 1, d + 1): [0, x₁], [y₁, 0], …, [0, x] |
# | `"tokens, narrow"` | (B, 2n + 1, d): x₁, [y₁, 0, …], …, x |
# | `"xs, ys"` | (B, n + 1, d) and (B, n + 1), the last y zero; assumed where `forward` takes two tensors |
# | `"xs, ys, x"` | (B, n, d), (B, n) and (B, d); assumed where `forward` takes three |
#
# Anything else is a function: `adapter=lambda model, xs, ys, x: …`, which returns one number a dataset. If your model was trained
# with at most so many points, give `points=`. Ask it about the data that it was trained on: the task says how many features, how
# much noise, sparse weights or dense ones (`emulon.tasks`).
#
# ## An estimator
#
# Whatever has `fit` and `predict`, from scikit-learn or not, is fitted anew on every dataset. TabPFN and TabICL are asked the
# same way.

# %%
import numpy as np


class ShrunkenMean:
    """Not a class of scikit-learn, and it need not be."""

    def fit(self, x, y):
        self.weights = np.linalg.solve(x.T @ x + 2.0 * np.eye(x.shape[1]), x.T @ y)
        return self

    def predict(self, x):
        return x @ self.weights


found = identify(ShrunkenMean(), Linear(features=3, noise=0.3), datasets=32, points=12)
print(found.nearest)

# %% [markdown]
# ```output
# ridge(ridge=2)
# ```

# %% [markdown]
# ## A language model
#
# A causal language model of transformers (`pip install 'emulon[hf]'`), in memory or from a folder, is asked in words: give its tokenizer as the adapter. Every
# example is a line `x = 0.13 -1.20; y = 0.75`, and the answer is decoded among the tokens that go on with a number. A model that
# was never trained runs none of the algorithms:

# %%
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

letters = {chr(code): number for number, code in enumerate([10, *range(32, 127)])}
characters = Tokenizer(models.WordLevel(letters, unk_token="?"))
characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
characters.decoder = decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters)

torch.manual_seed(0)
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
llama = LlamaForCausalLM(LlamaConfig(vocab_size=96, **sizes))
print(identify(llama, adapter=tokenizer, datasets=6, points=5).algorithm)

# %% [markdown]
# ```output
# none of these
# ```

# %% [markdown]
# From the command line a folder is enough, for a model with its tokenizer (`save_pretrained` of both); for runs of three public
# codes there is `examples/public_runs.py`:
#
# <!-- not run: there are no such folders here -->
# ```bash
# emulon identify checkpoints/llama             # transformers: numbers as text
# python examples/public_runs.py models/linear_regression/ID   # Garg et al. 2022, Yang et al. 2023: config.yaml beside state.pt
# python examples/public_runs.py runs/train_HASH               # Raventós et al. 2023: config.json beside params.npz
# emulon identify mine.py:model                 # whatever your own file makes
# ```
#
# Raventós et al.'s code keeps JAX checkpoints; in its environment one line writes params.npz:
# `numpy.savez("params.npz", **flax.traverse_util.flatten_dict(state.params, sep="/"))`.
#
# ## What the answer means
#
# - **Unexplained** is the mean squared difference between the model and an algorithm over the model's variance, on datasets that
#   its parameters were not fitted on, with a 95 % bootstrap interval. 0 is the same function; a random model leaves 1.
# - **None of these**: even the nearest leaves more than a tenth, or more than a quarter of the distance to the other kinds of
#   algorithms.
# - **Indistinguishable**: these datasets do not distinguish them. Least squares is ridge with a penalty of zero, and many steps of
#   descent; the one with the fewest parameters is named.
# - A model that answers the same to everything is called **constant**; one that fails, or answers NaN, is refused in one line.
#
# The whole ranking is a table (`found.to_frame()`, a pandas DataFrame; in a notebook `found` shows itself as one):

# %%
print(found.to_frame().loc[["ridge", "mean target", "previous target"], "unexplained"].round(2).to_string())

# %% [markdown]
# ```output
# reference
# ridge              0.00
# mean target        1.83
# previous target    4.07
# ```

# %% [markdown]
# `emulon identify … --report DIR` draws it, with the distances by number of examples and the best ridge parameter.
