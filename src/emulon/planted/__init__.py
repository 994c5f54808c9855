"""Planted models: transformers with a known learning algorithm, as ground truth for interpretability.

    from emulon import planted

    model = planted.plant("sgd", features=2, samples=5, step_size=0.5)   # or planted.sample(seed=3)
    xs, ys = model.draw(batch=8, seed=0)         # datasets of its domain; model.task draws them for `identify`
    model(xs, ys), model.algorithm(xs, ys)    # the network's answers and the exact ones, (batch, samples)
    model.certificate                            # bound on their distance; `proved`, or else measured
    model.predict(xs[:, :3], ys[:, :3], xs[:, 3])   # it is a predictor: identify(model, …) takes it
    planted.obfuscate(model, seed=1, strength=1.0)   # other weights, the same function; only=("rotated",) chooses

`model.network` is the Hugging Face model (a `GPT2Model`); call it with `inputs_embeds=model.embed(xs, ys)`: a start
token, then x₁, y₁, x₂, …, x_n (token 2i − 1 is x_i). `hidden_states[ℓ + 1]` is the stream after block ℓ, and
`model.answers(last_hidden_state)` reads ŷ.

`model.truth` is the ground truth (blocks count from 0, −1 is the embedding):
- `registers[name]`: `read` and `write`, both (size, width). `stream @ read.mT` are the register's entries, `stream +
  amounts @ write` changes them by `amounts`; the same at every block and token. `kind` is input, constant, register,
  spare or system.
- `versions`: a register's content between two writes. `w#2` is in the streams after the blocks `version.layers`, and
  ŷ depends on it at `version.tokens`; `last_read` is the last block whose reading of it matters to ŷ, or None.
  `model.values(xs, ys)["w#2"]` is its exact value, (batch, tokens − 1, size), at all tokens but the start.
- `instructions`: the block, heads and neurons that execute each, and whether ŷ depends on it (`matters`).
- `edges`: the causal graph between versions. `used_heads`, `unused_heads`, `used_neurons`, `unused_neurons`: pairs
  (block, index). `unused_registers`: registers that ŷ does not depend on.

`model(xs, ys, added={"w#2": amounts})` are the answers after adding amounts to what w#2 holds, and
`model.expected(xs, ys, added=…)` what they must be then. `planted.lens` does the same in TransformerLens,
`planted.finetune` trains from a planted model.

`save(model, folder)` writes a checkpoint that transformers reads, `truth.json` and a model card; `load(folder)` reads
it, and so does every command that takes a predictor.

`tokenized(model)` is a planted Llama that reads numbers as words and writes its answer as one: tokens in, logits out.
`chain_of_thought("faithful")` makes a Llama that writes steps before its answer; its truth says how each is used.
"""

from typing import Any

from emulon.core.names import renamed
from emulon.planted.chain import Chain, draw_chain
from emulon.planted.chain_model import ChainModel, chain_of_thought
from emulon.planted.files import load, save
from emulon.planted.learners import drawn_mechanism
from emulon.planted.mechanism import MECHANISMS, Mechanism, mechanism_named, read_mechanism
from emulon.planted.model import PlantedModel, plant, sample
from emulon.planted.obfuscation import OBFUSCATIONS, obfuscate
from emulon.planted.tokens import TokenModel, tokenized
from emulon.planted.truth import Truth

__all__ = [
    "MECHANISMS",
    "OBFUSCATIONS",
    "Chain",
    "ChainModel",
    "Mechanism",
    "PlantedModel",
    "TokenModel",
    "Truth",
    "chain_of_thought",
    "draw_chain",
    "drawn_mechanism",
    "load",
    "mechanism_named",
    "obfuscate",
    "plant",
    "read_mechanism",
    "sample",
    "save",
    "tokenized",
]

# Names of 0.2.
_EARLIER = {
    "DISGUISES": "OBFUSCATIONS",
    "Specimen": "PlantedModel",
    "disguise": "obfuscate",
    "specimen_named": "plant",
    "specimen_of": "plant",
}


def __getattr__(name: str) -> Any:
    return renamed(__name__, name, _EARLIER)
