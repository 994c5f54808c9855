# %% [markdown]
# # A planted model in TransformerLens
#
# A GPT-2 that provably runs stochastic gradient descent, with its weights rotated so that no coordinate means anything, and
# the truth about every direction. We patch one register in TransformerLens and see the change that the truth foretold. Five
# minutes.

# %%
# %pip install -q 'emulon[lens]'

# %% [markdown]
# ## Plant and obfuscate
#
# The model reads x₁, y₁, x₂, … and answers at every x with w·x, where w has taken a gradient step for each example before.

# %%
from emulon import planted

plain = planted.plant("sgd", features=2, samples=4, step_size=0.5)
model = planted.obfuscate(plain, seed=1)  # rotated, permuted, with dead heads and distractors: the same function
xs, ys = model.draw(batch=64, seed=0)
exact = model.algorithm(xs, ys)
print(f"error {(model(xs, ys) - exact).abs().max():.0e}, bound {model.certificate.bound:.0e}")
print(plain.truth.blocks, "blocks became", model.truth.blocks)

# %% [markdown]
# ```output
# error 4e-12, bound 7e-08
# 7 blocks became 10
# ```

# %% [markdown]
# ## Open it
#
# A saved planted model is a `GPT2LMHeadModel` with a vocabulary of one, whose logit is ŷ: whatever opens GPT-2 opens it.

# %%
from emulon.planted.lens import adding, read_at, to_transformer_lens

bridge = to_transformer_lens(model, "planted-sgd")
prompt = model.embed(xs, ys)
logits, cache = bridge.run_with_cache(prompt)
print(f"logits are the answers: {(logits[:, 1::2, 0] - exact).abs().max():.0e}")

# %% [markdown]
# ```output
# logits are the answers: 4e-12
# ```

# %% [markdown]
# ## What the truth says
#
# The content of a register between two writes is a version: `w#3` is what the third step wrote. The truth has where it is in
# the stream, and which block writes it.

# %%
version = model.truth.version("w#3")
w = model.truth.read("w", cache[read_at(version)][:, 1:])
print("in the stream after blocks", list(version.layers))
print("w before the last answer of the first prompt:", [round(value, 3) for value in w[0, -1].tolist()])

# %% [markdown]
# ```output
# in the stream after blocks [9]
# w before the last answer of the first prompt: [0.474, -0.294]
# ```

# %% [markdown]
# Beside it the same weights by three steps in ordinary code:

# %%
import torch

weights = torch.zeros(2, dtype=torch.float64)
for x, y in zip(xs[0, :3], ys[0, :3], strict=True):
    weights = weights - 0.5 * (weights @ x - y) * x
print([round(value, 3) for value in weights.tolist()])

# %% [markdown]
# ```output
# [0.474, -0.294]
# ```

# %% [markdown]
# ## A patch that does what the truth foretold
#
# Add (0.1, 0) to w₃. If this direction is w, the last answer moves by 0.1·x₁, and nothing before it moves.

# %%
change = {"w#3": torch.tensor([0.1, 0.0], dtype=torch.float64)}
patched = bridge.run_with_hooks(prompt, fwd_hooks=adding(model, change))[:, 1::2, 0]
moved = patched - logits[:, 1::2, 0]
foretold = model.expected(xs, ys, added=change) - exact  # what the program computes after that change
print(f"ŷ moves by up to {moved.abs().max():.3f}; off the truth by {(moved - foretold).abs().max():.0e}")
print(f"and that is 0.1·x: {(moved[:, -1] - 0.1 * xs[:, -1, 0]).abs().max():.0e}")

# %% [markdown]
# ```output
# ŷ moves by up to 0.099; off the truth by 2e-13
# and that is 0.1·x: 2e-13
# ```

# %% [markdown]
# A distractor is computed beside it, in a register that ŷ does not depend on. Changing it changes nothing:

# %%
change = {"distractor 1#1": torch.ones(2, dtype=torch.float64)}
patched = bridge.run_with_hooks(prompt, fwd_hooks=adding(model, change))[:, 1::2, 0]
print("distractor 1" in model.truth.unused_registers, f"{(patched - logits[:, 1::2, 0]).abs().max():.0e}")

# %% [markdown]
# ```output
# True 5e-13
# ```

# %% [markdown]
# nnsight and PyTorch's own hooks need only `model.network` and `truth.registers["w"].write`. An opened model is a predictor
# with its hooks in effect: `identify(bridge, model.task)` takes a bridge or an `NNsight`.
#
# Next: [eleven mechanisms, their truth and obfuscations](planted_models.md), or [score your own method](add_a_method.md).
