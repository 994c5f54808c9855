"""The architectures of planted models: how a program is compiled, and where its weights are in a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.core.errors import EmulonError
from emulon.core.hub import tokenizer_files
from emulon.core.names import Registry
from emulon.machine.compiler import Plan, compile_program, planned
from emulon.machine.layout import DIVIDE, PAD
from emulon.machine.program import RegisterProgram
from emulon.machine.targets import llama_registers
from emulon.machine.targets.gpt2 import ROTATED, config_of, neox_config, state_dict
from emulon.machine.targets.llama_registers import LlamaMachine
from emulon.machine.targets.stock import stock_model
from emulon.machine.transformer import Transformer
from emulon.planted.truth import Compiled


@dataclass
class Block:
    """The weights of one block; every row reads or writes a direction of the residual stream.

    Attributes:
        query: (heads, size, width), and likewise key, value and output.
        inward: (parts, neurons, width): what neurons read; in a Llama gate and up, in GPT-2 one part.
        outward: (neurons, width): what neurons write.
        fixed: Gains and biases by their names in the block; no obfuscation changes them.
    """

    query: Float[Tensor, "heads size width"]
    key: Float[Tensor, "heads size width"]
    value: Float[Tensor, "heads size width"]
    output: Float[Tensor, "heads size width"]
    inward: Float[Tensor, "parts neurons width"]
    outward: Float[Tensor, "neurons width"]
    fixed: dict[str, Tensor]

    @property
    def reads(self) -> dict[str, Tensor]:
        """Rows that read the stream, by name."""
        return {"query": self.query, "key": self.key, "value": self.value, "inward": self.inward}

    @property
    def writes(self) -> dict[str, Tensor]:
        """Rows that are written to the stream, by name."""
        return {"output": self.output, "outward": self.outward}


@dataclass
class Weights:
    """All weights of a planted model in float64 or its own dtype.

    Attributes:
        positions: What the embedding adds at every token.
        blocks: The blocks.
        gain: The gain of the final normalisation.
    """

    positions: Float[Tensor, "tokens width"]
    blocks: list[Block]
    gain: Float[Tensor, " width"]

    def dead_block(self) -> Block:
        """A block that writes nothing and normalises as the final normalisation does."""
        like = self.blocks[0]
        fixed = {
            name: self.gain.clone() if name in NORMS else torch.zeros_like(part) for name, part in like.fixed.items()
        }
        parts = {name: torch.zeros_like(part) for name, part in {**like.reads, **like.writes}.items()}
        return Block(**parts, fixed=fixed)


# Gains of the normalisations in a block.
NORMS = ("ln_1.weight", "ln_2.weight", "input_layernorm.weight", "post_attention_layernorm.weight")


class Architecture(ABC):
    """One of the transformer classes that programs are compiled to.

    `blocks`, `attention`, `mlp`, `output` and `norm` are module paths in the Hugging Face model, those of the middle
    three relative to a block; `prefix` stands before the names of weights in the checkpoint of the class `with_head`,
    whose unembedding is called `head` here. `dead_share` is the 2-norm of all that dead components write at strength 1,
    relative to that of a token's registers and codes; `noise_roundings` the largest relative change of a noisy weight,
    in roundings. Where nothing useful is proved of a rotated model, its registers are mixed in groups of so many slots
    as `mixed` says, from the first number to the last.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    dtypes: ClassVar[tuple[torch.dtype, ...]]
    prefix: ClassVar[str]
    head: ClassVar[str]
    with_head: ClassVar[str]
    blocks: ClassVar[str]
    attention: ClassVar[str]
    mlp: ClassVar[str]
    output: ClassVar[str]
    norm: ClassVar[str]
    dead_share: ClassVar[float]
    noise_roundings: ClassVar[float] = 64.0
    mixed: ClassVar[tuple[int, ...]] = ()

    def require(self, dtype: torch.dtype) -> None:
        """Refuse a dtype in which the Hugging Face class does not compute."""
        if dtype not in self.dtypes:
            names = " or ".join(str(one).removeprefix("torch.") for one in self.dtypes)
            raise EmulonError(f"{self.title} models are {names}, not {str(dtype).removeprefix('torch.')}")

    def glued(self, machine: Compiled) -> list[int]:
        """Blocks of the machine that the next one must follow directly."""
        return []

    @abstractmethod
    def compile(self, program: RegisterProgram, dtype: torch.dtype) -> Compiled:
        """The program as a network of this architecture."""

    @abstractmethod
    def plan(self, program: RegisterProgram, dtype: torch.dtype) -> Plan:
        """What is known of that network before weights are built, for certificates."""

    @abstractmethod
    def weights_of(self, machine: Compiled) -> Weights:
        """The weights of a compiled program, in float64."""

    @abstractmethod
    def parse(self, state: Mapping[str, Tensor], heads: int) -> Weights:
        """The weights of a checkpoint; views of its tensors where possible."""

    @abstractmethod
    def state(self, weights: Weights, readout: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """The checkpoint of weights, without `prefix`; `readout` is the direction of the only useful logit, ŷ."""

    def load(self, state: Mapping[str, Tensor], heads: int) -> Any:
        """The Hugging Face model (without a head) with these parameters."""
        return stock_model(self.name, self.config(state, heads), state)

    @abstractmethod
    def config(self, state: Mapping[str, Tensor], heads: int) -> dict[str, Any]:
        """The entries of config.json that decide the function that these parameters compute."""

    def saved_name(self, name: str) -> str:
        """The name of a parameter in the saved checkpoint, which is of the model with a head."""
        return f"{self.prefix}{name}"

    def more_files(self, tokens: int) -> dict[str, Any]:
        """JSON files that other tools want beside config.json, by name."""
        return {}

    def sizes(self, state: Mapping[str, Tensor]) -> tuple[tuple[int, int], int]:
        """(tokens, width) and the number of blocks."""
        weights = self.parse(state, 1)
        tokens, width = weights.positions.shape
        return (tokens, width), len(weights.blocks)

    def fixed_slots(self, machine: Compiled) -> list[int]:
        """Slots that no obfuscation touches: pads and divisors are 1e5 to 1e13 times as large as the rest."""
        slots = machine.layout.slots
        names = [name for name in (PAD, DIVIDE) if name in slots]
        return [i for name in names for i in range(slots[name].start, slots[name].stop)]

    def blocks_of(self, model: Any) -> Any:
        """The blocks of a Hugging Face model, as a module list."""
        return model.get_submodule(self.blocks)

    def prompt_offset(self, weights: Mapping[str, Tensor]) -> Tensor | None:
        """What `inputs_embeds` must contain beside the inputs; None where the model adds it itself."""
        return None


class Gpt2(Architecture):
    """`transformers.GPT2Model`."""

    name, title = "gpt2", "GPT-2"
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float64, torch.float32)
    prefix, head, with_head = "transformer.", "wte.weight", "GPT2LMHeadModel"
    blocks, attention, mlp, output, norm = "h", "attn", "mlp", "attn.c_proj", "ln_f"
    dead_share = 16.0

    def compile(self, program: RegisterProgram, dtype: torch.dtype) -> Compiled:
        return program.compile(dtype)

    def plan(self, program: RegisterProgram, dtype: torch.dtype) -> Plan:
        return planned(program, dtype)

    def weights_of(self, machine: Compiled) -> Weights:
        assert isinstance(machine, Transformer)
        return self.parse({name: part.double() for name, part in state_dict(machine).items()}, machine.heads)

    def parse(self, state: Mapping[str, Tensor], heads: int) -> Weights:
        blocks = []
        for index in range(sum(name.endswith("c_fc.weight") for name in state)):
            part = {name.removeprefix(f"h.{index}."): w for name, w in state.items() if name.startswith(f"h.{index}.")}
            query, key, value = part["attn.c_attn.weight"].mT.unflatten(0, (3, heads, -1))
            output = part["attn.c_proj.weight"].unflatten(0, (heads, -1))
            fixed = {name: w for name, w in part.items() if name.endswith("bias") or name in NORMS}
            inward, outward = part["mlp.c_fc.weight"].mT[None], part["mlp.c_proj.weight"]
            blocks.append(Block(query, key, value, output, inward, outward, fixed))
        return Weights(state["wpe.weight"], blocks, state["ln_f.weight"])

    def state(self, weights: Weights, readout: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        state = {
            "wte.weight": readout,
            "wpe.weight": weights.positions,
            "ln_f.weight": weights.gain,
            "ln_f.bias": torch.zeros_like(weights.gain),
        }
        for index, block in enumerate(weights.blocks):
            parts = {
                "attn.c_attn.weight": torch.stack([block.query, block.key, block.value]).flatten(0, 2).mT,
                "attn.c_proj.weight": block.output.flatten(0, 1),
                "mlp.c_fc.weight": block.inward[0].mT,
                "mlp.c_proj.weight": block.outward,
                **block.fixed,
            }
            state |= {f"h.{index}.{name}": part for name, part in parts.items()}
        return {name: part.to(dtype).contiguous() for name, part in state.items()}

    def config(self, state: Mapping[str, Tensor], heads: int) -> dict[str, Any]:
        return config_of(state, heads)


class PlacesAsTokens(Architecture):
    """What a prompt holds beside its inputs are the embeddings of the tokens 0, 1, …; the unembedding is separate."""

    embedding: ClassVar[str]

    def saved_name(self, name: str) -> str:
        return name if name == self.head else f"{self.prefix}{name}"

    def prompt_offset(self, weights: Mapping[str, Tensor]) -> Tensor | None:
        """The embeddings of the tokens 0, 1, 2, …: pads, codes, constants."""
        return weights[self.embedding]

    def unembedding(self, weights: Weights, readout: Tensor) -> Tensor:
        """Its first row reads ŷ, or its rows what words are written by."""
        head = torch.zeros_like(weights.positions)
        head[: len(readout)] = readout
        return head

    def more_files(self, tokens: int) -> dict[str, Any]:
        """A tokenizer whose words are the places of a prompt, `<s> x1 y1 x2 …`; libraries want one."""
        words = ["<s>", *(f"{'xy'[place % 2]}{place // 2 + 1}" for place in range(tokens - 1))]
        return tokenizer_files(words, begins=False)


# Parameters of a GPT-NeoX layer and what they are called in GPT-2, where they are the same.
NEOX_NAMES = {
    "ln_1": "input_layernorm",
    "attn.c_attn": "attention.query_key_value",
    "attn.c_proj": "attention.dense",
    "ln_2": "post_attention_layernorm",
    "mlp.c_fc": "mlp.dense_h_to_4h",
    "mlp.c_proj": "mlp.dense_4h_to_h",
}


class GptNeoX(PlacesAsTokens, Gpt2):
    """`transformers.GPTNeoXModel` in float64 without parallel residuals: GPT-2's block, with rotary embeddings.

    The first ROTATED places of a head's queries and keys are rotated; they are zero in heads in use. Eager attention
    has its softmax in float32, scaled dot product attention, the default, in float64.
    """

    name, title = "gpt_neox", "GPT-NeoX"
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float64,)
    prefix, head, with_head = "gpt_neox.", "lm_head.weight", "GPTNeoXForCausalLM"
    blocks, attention, mlp, output, norm = "layers", "attention", "mlp", "attention.dense", "final_layer_norm"
    embedding = "embed_in.weight"
    noise_roundings = 8.0

    def compile(self, program: RegisterProgram, dtype: torch.dtype) -> Compiled:
        return compile_program(program, dtype, rotated=ROTATED)

    def plan(self, program: RegisterProgram, dtype: torch.dtype) -> Plan:
        return planned(program, dtype, rotated=ROTATED)

    def weights_of(self, machine: Compiled) -> Weights:
        weights = super().weights_of(machine)
        for block in weights.blocks:
            for old, new in NEOX_NAMES.items():
                for kind in ("weight", "bias"):
                    if f"{old}.{kind}" in block.fixed:
                        block.fixed[f"{new}.{kind}"] = block.fixed.pop(f"{old}.{kind}")
        return weights

    def parse(self, state: Mapping[str, Tensor], heads: int) -> Weights:
        if "wpe.weight" in state:
            return super().parse(state, heads)
        blocks = []
        for index in range(sum(name.endswith("dense_h_to_4h.weight") for name in state)):
            start = f"layers.{index}."
            part = {name.removeprefix(start): w for name, w in state.items() if name.startswith(start)}
            query, key, value = part["attention.query_key_value.weight"].unflatten(0, (heads, 3, -1)).unbind(1)
            query, key = (one.roll(-ROTATED, dims=1) for one in (query, key))
            output = part["attention.dense.weight"].mT.unflatten(0, (heads, -1))
            fixed = {name: w for name, w in part.items() if name.endswith("bias") or name in NORMS}
            inward, outward = part["mlp.dense_h_to_4h.weight"][None], part["mlp.dense_4h_to_h.weight"].mT
            blocks.append(Block(query, key, value, output, inward, outward, fixed))
        return Weights(state[self.embedding], blocks, state["final_layer_norm.weight"])

    def state(self, weights: Weights, readout: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        state = {
            self.embedding: weights.positions,
            "final_layer_norm.weight": weights.gain,
            "final_layer_norm.bias": torch.zeros_like(weights.gain),
            self.head: self.unembedding(weights, readout),
        }
        for index, block in enumerate(weights.blocks):
            query, key = (one.roll(ROTATED, dims=1) for one in (block.query, block.key))
            parts = {
                "attention.query_key_value.weight": torch.stack([query, key, block.value], dim=1).flatten(0, 2),
                "attention.dense.weight": block.output.flatten(0, 1).mT,
                "mlp.dense_h_to_4h.weight": block.inward[0],
                "mlp.dense_4h_to_h.weight": block.outward.mT,
                **block.fixed,
            }
            state |= {f"layers.{index}.{name}": part for name, part in parts.items()}
        return {name: part.to(dtype).contiguous() for name, part in state.items()}

    def config(self, state: Mapping[str, Tensor], heads: int) -> dict[str, Any]:
        return neox_config(state, heads)


# What the words of a text hold beside the registers (`planted.tokens`).
WORD = "word"
# The parameters of a Llama layer, in the order of `Block`, and its gains.
LLAMA_PARTS = (
    *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
)


class Llama(PlacesAsTokens):
    """`transformers.LlamaModel`, in float32: it normalises in float32 whatever the dtype of its weights."""

    name, title = "llama", "Llama"
    dtypes = (torch.float32,)
    prefix, head, with_head = "model.", "lm_head.weight", "LlamaForCausalLM"
    blocks, attention, mlp, output, norm = "layers", "self_attn", "mlp", "self_attn.o_proj", "norm"
    embedding = "embed_tokens.weight"
    dead_share, noise_roundings, mixed = 2.0, 2.0, (16, 8, 6)

    def glued(self, machine: Compiled) -> list[int]:
        """Divisions: the next attention puts the pad back."""
        return [index for index, layer in enumerate(machine.layers) if layer.divisions]

    def compile(self, program: RegisterProgram, dtype: torch.dtype) -> Compiled:
        return llama_registers.compile_registers(program)

    def plan(self, program: RegisterProgram, dtype: torch.dtype) -> Plan:
        return llama_registers.plan_llama(program)

    def weights_of(self, machine: Compiled) -> Weights:
        assert isinstance(machine, LlamaMachine)
        blocks = []
        for part in machine.typed_blocks:
            unused = (0, 0, 0, machine.inner - part.units)
            inward = torch.nn.functional.pad(torch.stack([part.gate, part.up]), unused)
            outward = torch.nn.functional.pad(part.outward, unused)
            fixed = dict(zip(NORMS[2:], (part.attention_gain.clone(), part.mlp_gain.clone()), strict=True))
            blocks.append(Block(part.query, part.key, part.value, part.output, inward, outward, fixed))
        return Weights(machine.positions.clone(), blocks, machine.gain)

    def parse(self, state: Mapping[str, Tensor], heads: int) -> Weights:
        blocks = []
        for index in range(sum(name.endswith("mlp.up_proj.weight") for name in state)):
            query, key, value, output, gate, up, down = (state[f"layers.{index}.{name}"] for name in LLAMA_PARTS)
            query, key, value, output = (part.unflatten(0, (heads, -1)) for part in (query, key, value, output.mT))
            fixed = {name: state[f"layers.{index}.{name}"] for name in NORMS[2:]}
            blocks.append(Block(query, key, value, output, torch.stack([gate, up]), down.mT, fixed))
        return Weights(state[self.embedding], blocks, state["norm.weight"])

    def state(self, weights: Weights, readout: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        head = self.unembedding(weights, readout)
        state = {self.embedding: weights.positions, "norm.weight": weights.gain, self.head: head}
        for index, block in enumerate(weights.blocks):
            split = [part.flatten(0, 1) for part in (block.query, block.key, block.value)]
            parts = (*split, block.output.flatten(0, 1).mT, *block.inward, block.outward.mT)
            state |= {f"layers.{index}.{name}": part for name, part in zip(LLAMA_PARTS, parts, strict=True)}
            state |= {f"layers.{index}.{name}": part for name, part in block.fixed.items()}
        return {name: part.to(dtype).contiguous() for name, part in state.items()}

    def config(self, state: Mapping[str, Tensor], heads: int) -> dict[str, Any]:
        ours = llama_registers.config_of(state, heads)
        return {name: value for name, value in ours.items() if value is not None}

    def fixed_slots(self, machine: Compiled) -> list[int]:
        """All but registers and filler: codes, marks, ones and what words hold, so that look-ups stay exact."""
        slots, registers = machine.layout.slots, machine.program.registers
        names = [name for name in slots if name == WORD or (name not in registers and name != "filler")]
        return [i for name in names for i in range(slots[name].start, slots[name].stop)]


ARCHITECTURES: Registry[Architecture] = Registry("architecture")
for one in (Gpt2(), Llama(), GptNeoX()):
    ARCHITECTURES.register(one, one.name)
