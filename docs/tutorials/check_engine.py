# %% [markdown]
# # Check an inference engine
#
# Does an engine compute what a checkpoint says? Comparing two engines cannot tell which is right, and a tolerance cannot tell
# rounding from a fault. A **canary** is a tiny stock `LlamaForCausalLM` whose every register is known, so that logits alone say
# which operation is wrong. Here two faults are planted in an engine, and found. Five minutes.

# %%
# %pip install -q emulon

# %% [markdown]
# ## An engine
#
# Yours is whatever turns a Hugging Face folder (config.json, model.safetensors, tokenizer) and prompts into logits. This one is a
# forward pass in forty lines of numpy, with two switches for faults that engines have had: key and value groups in the wrong
# order, and scores divided by √(hidden/heads) where the config has another `head_dim`.

# %%
import json

import numpy as np
from safetensors.numpy import load_file


class Engine:
    """A Llama's forward pass in numpy, right or with a fault."""

    def __init__(self, folder, fault=""):
        self.fault = fault
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")

    def logits(self, prompts):
        return np.stack([self.forward(list(prompt)) for prompt in prompts])

    def forward(self, tokens):
        c, w = self.config, self.weights
        heads, groups, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        angle = np.arange(len(tokens))[:, None] * c["rope_parameters"]["rope_theta"] ** (-np.arange(0, size, 2) / size)
        cos, sin = (f(angle).astype(np.float32)[:, None] for f in (np.cos, np.sin))

        def norm(x, g):
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(c["rms_norm_eps"])) * g

        def turned(z):
            a, b = z[..., : size // 2], z[..., size // 2 :]
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

        x = w["model.embed_tokens.weight"][tokens]
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            seen = norm(x, w[at + "input_layernorm.weight"])
            q, k, v = (
                (seen @ w[f"{at}self_attn.{n}_proj.weight"].T).reshape(len(tokens), count, size)
                for n, count in (("q", heads), ("k", groups), ("v", groups))
            )
            q, k = turned(q), turned(k)
            if self.fault == "groups":
                k, v = (np.tile(z, (1, heads // groups, 1)) for z in (k, v))
            else:
                k, v = (np.repeat(z, heads // groups, axis=1) for z in (k, v))
            width = c["hidden_size"] / heads if self.fault == "scale" else size
            scores = np.einsum("ihd,jhd->hij", q, k) / np.float32(width**0.5)
            scores = np.where(np.tri(len(tokens), dtype=bool), scores, -np.inf)
            share = np.exp(scores - scores.max(-1, keepdims=True))
            share /= share.sum(-1, keepdims=True)
            read = np.einsum("hij,jhd->ihd", share, v).reshape(len(tokens), -1)
            x = x + read @ w[at + "self_attn.o_proj.weight"].T
            seen = norm(x, w[at + "post_attention_layernorm.weight"])
            gate, up = (seen @ w[f"{at}mlp.{n}_proj.weight"].T for n in ("gate", "up"))
            with np.errstate(over="ignore"):
                gate = gate / (1 + np.exp(-gate))
            x = x + (gate * up) @ w[at + "mlp.down_proj.weight"].T
        return norm(x[-1], w["model.norm.weight"]) @ w["lm_head.weight"].T


# %% [markdown]
# ## Check it
#
# `check` writes the canaries, opens each with your engine, asks their prompts, and compares every register: digital canaries to the
# last bit, analog ones by the bits that are proved for any order of summation.

# %%
from emulon.canary import check

report = check(lambda folder: Engine(folder).logits, "numpy")
print("wrong:", report.wrong)

# %% [markdown]
# ```output
# wrong: []
# ```

# %% [markdown]
# With a fault, the first wrong operation is named:

# %%
for fault in ("groups", "scale"):
    found = check(lambda folder, fault=fault: Engine(folder, fault).logits, fault).first_wrong
    print(f"{fault}: {found.canary} | {found.operation}")

# %% [markdown]
# ```output
# groups: digital | mean of what another head reads (grouped heads)
# scale: analog-wide | softmax of two scores near 32, 1.0625 apart
# ```

# %% [markdown]
# The first fault would pass a test of perplexity on a model without grouped heads, and the second one on all models whose heads
# share the width evenly.
#
# ## In your engine's tests

# %%
from emulon.canary import assert_known_answers


def test_known_answers():
    assert_known_answers(lambda folder: Engine(folder).logits)


test_known_answers()

# %% [markdown]
# With emulon installed, pytest has it as the fixture `known_answers`, which needs no import.
#
# Engines that are known are checked from the command line, also in bfloat16 and float16:
#
# <!-- not run: needs these engines -->
# ```bash
# emulon canary check --engine transformers
# ```
#
# Next: [what was found in engines](../canaries.md).
