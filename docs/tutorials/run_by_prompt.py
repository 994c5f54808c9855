# %% [markdown]
# # Run an algorithm by prompt
#
# A prompt of readable text goes into an untouched `LlamaForCausalLM`, and `generate()` writes the iterates of gradient
# descent. Nothing in the model was trained: its weights are compiled. Five minutes.

# %%
# %pip install -q 'emulon[hf]'

# %% [markdown]
# ## A checkpoint that anything opens
#
# `language.write` compiles the interpreter into an ordinary folder of Hugging Face, 4 MB; from here on transformers alone
# is needed.

# %%
from transformers import AutoModelForCausalLM, AutoTokenizer

from emulon import language

language.write("llama")
llama = AutoModelForCausalLM.from_pretrained("llama")
tokenizer = AutoTokenizer.from_pretrained("llama")
print(type(llama).__name__, llama.config.num_hidden_layers, "layers,", llama.config.vocab_size, "words")

# %% [markdown]
# ```output
# LlamaForCausalLM 8 layers, 6661 words
# ```

# %% [markdown]
# ## The prompt is the program
#
# Three examples of two features, and ridge regression: step size, penalty, the pieces of its loss, the rows, and weights to
# start from.

# %%
from emulon.algorithms import Lasso, Ridge

x, y = [[0.5, 1.0], [-1.0, 0.25], [1.5, -0.5]], [1.0, -0.5, 1.25]
ridge = language.text_of(language.prompt(Ridge(0.3, steps=3), x, y))
print(ridge)

# %% [markdown]
# ```output
# until:3 rate +0.67 -464 -447 ridge +0.30 +000 +000 momentum +0.00 +000 +000
# slope +0.00 +000 +000 bias +0.00 +000 +000 times +1.00 +000 +000 plus +0.00 +000 +000 loss^0
# slope +0.00 +000 +000 bias +0.00 +000 +000 times +1.00 +000 +000 plus +0.00 +000 +000 prox^0
# #1 y +1.00 +000 +000 x1 +0.50 +000 +000 x2 +1.00 +000 +000
# #2 y -0.50 +000 +000 x1 -1.00 +000 +000 x2 +0.25 +000 +000
# #3 y +1.25 +000 +000 x1 +1.50 +000 +000 x2 -0.50 +000 +000
# step:-1 w1 +0.00 +000 +000 w2 +0.00 +000 +000
# step:0 w1 +0.00 +000 +000 w2 +0.00 +000 +000
# ```

# %% [markdown]
# Every word is one token, and a number is three: `+0.32 -488 +484` is 0.32 − 0.00488 + 0.00000484.

# %%
import torch


def written(prompt):
    tokens = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        out = llama.generate(**tokens)
    return tokenizer.decode(out[0, tokens["input_ids"].shape[1] :], skip_special_tokens=True)


print(written(ridge))

# %% [markdown]
# ```output
# step:1 @1 @2 @3 w1 +0.64 -237 +239 w2 +0.06 -455 -370 step:2 @1 @2 @3 w1 +0.66 -082 -325 w2 +0.15 +439 +381 step:3 @1 @2 @3 w1 +0.67 +067 -052 w2 +0.21 -282 -308
# ```

# %% [markdown]
# The last line's weights are 0.67066948 and 0.20717692. Here is ridge regression by three steps of descent in ordinary code:

# %%
import numpy as np

data, targets, weights = np.array(x), np.array(y), np.zeros(2)
rate = Ridge(0.3, steps=3).resolved_step_size(torch.tensor(x), torch.tensor(y)).item()
for _ in range(3):
    weights = weights - rate * (data.T @ (data @ weights - targets) / 3 + 0.3 * weights)
print(weights.round(5))

# %% [markdown]
# ```output
# [0.67067 0.20718]
# ```

# %% [markdown]
# ## Another prompt, another algorithm
#
# What differs between the prompts of ridge and lasso is the program:

# %%
import difflib

lasso = language.text_of(language.prompt(Lasso(0.05, steps=3), x, y))
for line in difflib.ndiff(ridge.splitlines(), lasso.splitlines()):
    if line.startswith(("-", "+")):
        print(line)
print("step:3" + written(lasso).split("step:3")[1])

# %% [markdown]
# ```output
# - until:3 rate +0.67 -464 -447 ridge +0.30 +000 +000 momentum +0.00 +000 +000
# + until:3 rate +0.83 +129 -431 ridge +0.00 +000 +000 momentum +0.00 +000 +000
# - slope +0.00 +000 +000 bias +0.00 +000 +000 times +1.00 +000 +000 plus +0.00 +000 +000 prox^0
# + slope -1.00 +000 +000 bias -0.04 -156 -428 times +1.00 +000 +000 plus +0.04 +156 +428 prox^24
# + slope +0.00 +000 +000 bias +0.00 +000 +000 times +0.00 +000 +000 plus +0.00 +000 +000 prox^24
# + slope +1.00 +000 +000 bias -0.04 -156 -428 times +1.00 +000 +000 plus -0.04 -156 -428 prox^24
# step:3 @1 @2 @3 w1 +0.80 -056 +200 w2 +0.23 +143 +174
# ```

# %% [markdown]
# ## Proof from the text alone
#
# `TextModel.run` does the same in one call, and its audit reads nothing but the transcript: it computes the exact iterates in
# ball arithmetic and bounds how far each written weight is from them.

# %%
model = language.load("llama")
runs = [model.run(algorithm, x, y) for algorithm in (Ridge(0.3, steps=3), Lasso(0.05, steps=3))]
print([run.audit.bound < 1e-7 for run in runs], runs[0].sha256 == runs[1].sha256)

# %% [markdown]
# ```output
# [True, True] True
# ```

# %% [markdown]
# Next: [the language](../llama.md), or [how it is compiled](../theorems/text_interpreter.md).
