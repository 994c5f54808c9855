"""Ground truth for interpretability: GPT-2 models with a planted learning algorithm, known to the last register.

    from emulon import planted as specimens

    specimen = specimens.specimen_named("sgd", features=2, samples=5, step_size=0.5)   # or specimens.sample(seed=3)
    xs, ys = specimen.draw(batch=8, seed=0)         # datasets of its domain; specimen.task draws them for `identify`
    specimen(xs, ys), specimen.algorithm(xs, ys)    # the GPT-2's answers and the exact ones, (batch, samples)
    specimen.certificate                            # how far they may be apart; `proved`, or measured where that failed
    specimen.predict(xs[:, :3], ys[:, :3], xs[:, 3])   # a predictor like any other: identify(specimen, …) takes it
    specimens.disguise(specimen, seed=1, strength=1.0)   # other weights, the same function; only=("turned",) chooses

`specimen.model` is the `transformers.GPT2Model`, to be called with `inputs_embeds=specimen.embed(xs, ys)`: a start
token, then x₁, y₁, x₂, …, x_n (token 2i − 1 is x_i). `hidden_states[ℓ + 1]` is the stream after block ℓ, and
`specimen.answers(last_hidden_state)` reads ŷ.

`specimen.truth` says what is where (blocks count from 0, −1 is the embedding):
- `registers[name]`: `read` and `write`, both (size, width). `stream @ read.mT` are the register's entries, `stream +
  amounts @ write` changes them by `amounts`; the same at every block and token. `kind` is input, constant, register,
  spare or system.
- `versions`: what a register holds between two writes. `w#2` stands in the streams after the blocks `version.layers`,
  and predictions depend on it at `version.tokens`; `last_read` is the last block that reads it, None where none does
  that matters. `specimen.values(xs, ys)["w#2"]` is what it must be, (batch, tokens − 1, size): all but the start token.
- `instructions`: the block, heads and neurons that do each, and whether ŷ depends on it (`matters`).
- `edges`: the causal graph between versions. `used_heads`, `unused_heads`, `used_neurons`, `unused_neurons`: pairs
  (block, index). `unused_registers`: what no prediction depends on.

`specimen(xs, ys, added={"w#2": amounts})` are the answers where so much was added to what w#2 holds, and
`specimen.expected(xs, ys, added=…)` what the program itself says they are then. `specimens.lens` does the same in
TransformerLens, `specimens.finetune` trains from a specimen on.

`save(specimen, folder)` writes a checkpoint that `GPT2Model.from_pretrained` reads, `truth.json` and a model card;
`load(folder)` reads it, and so does every command that takes a predictor.
"""

from emulon.planted.disguise import EVERY as DISGUISES
from emulon.planted.disguise import disguise
from emulon.planted.files import load, save
from emulon.planted.mechanism import MECHANISMS, Mechanism, mechanism_named, read_mechanism
from emulon.planted.sampling import drawn_mechanism, sample, specimen_named
from emulon.planted.specimen import Specimen, specimen_of
from emulon.planted.truth import Truth

__all__ = [
    "DISGUISES",
    "MECHANISMS",
    "Mechanism",
    "Specimen",
    "Truth",
    "disguise",
    "drawn_mechanism",
    "load",
    "mechanism_named",
    "read_mechanism",
    "sample",
    "save",
    "specimen_named",
    "specimen_of",
]
