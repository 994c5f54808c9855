"""The model card of a specimen, written from what is known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emulon.planted.specimen import Specimen

CARD = """---
library_name: transformers
tags: [interpretability, ground-truth, in-context-learning]
---
# {name}

A GPT-2 of {blocks} blocks, width {width}, {heads} heads and {neurons} neurons a block whose mechanism is known: its
weights were compiled from the program below, not trained. {doc}

It reads x₁, y₁, x₂, …, x_{samples} ({features} feature{s}; ‖x‖ ≤ 1, |y| ≤ 1) and answers at every x from the
examples before it.

```python
from transformers import GPT2Model
from emulon import planted as specimens

model = GPT2Model.from_pretrained("this folder")   # any tool that reads GPT-2
specimen = specimens.load("this folder")           # the same, with the truth beside it
xs, ys = specimen.draw(batch=8)
model(inputs_embeds=specimen.embed(xs, ys)).last_hidden_state
specimen(xs, ys), specimen.algorithm(xs, ys)       # the model's answers, and the exact ones
```

**Promise.** |answer − exact answer| {promise}.

**Truth.** `truth.json` has the directions of every register (`read`, `write`), what each holds after which block
(`versions`), the heads and neurons behind every instruction, the graph between them, and what is not used.
Disguises: {disguises}.

```text
{program}
```
"""


def model_card(specimen: Specimen) -> str:
    mechanism, truth = specimen.mechanism, specimen.truth
    return CARD.format(
        name=specimen.name,
        blocks=truth.blocks,
        width=truth.width,
        heads=truth.heads,
        neurons=truth.neurons,
        doc=" ".join((type(mechanism).__doc__ or "").split("\n\n")[0].split()),
        samples=mechanism.samples,
        features=mechanism.features,
        s="" if mechanism.features == 1 else "s",
        promise=specimen.promise,
        disguises=", ".join(specimen.build.disguises) or "none",
        program=specimen.source,
    )
