"""The architectures of planted models: how a program is compiled, and where its weights are in a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.core.errors import EmulonError
from emulon.core.hub import tokenizer_files
from emulon.core.names import Registry
from emulon.machine.compiler import Plan, planned
from emulon.machine.layout import DIVIDE, PAD
from emulon.machine.program import RegisterProgram
from emulon.machine.targets import llama_registers
from emulon.machine.targets.gpt2 import ROTATED, config_of, neox_config, state_dict
from emulon.machine.targets.llama_registers import LlamaMachine
from emulon.machine.targets.stock import stock_model, with_llama_names, with_stock_names
from emulon.machine.transformer import Transformer, compile_program
from emulon.planted.truth import Compiled


@dataclass
class Block:
    """The weights of one block; every row reads or writes a direction of the residual stream."""

    query: Float[Tensor, "heads size width"]
    key: Float[Tensor, "heads size width"]
    value: Float[Tensor, "heads size width"]
    output: Float[Tensor, "heads size width"]
    inward: Float[Tensor, "parts neurons width"]  # in a Llama gate and up, in GPT-2 one part
    outward: Float[Tensor, "neurons width"]
    fixed: dict[str, Tensor]  # gains and biases by their names in a Llama's block; no obfuscation changes them

    @property
    def reads(self) -> dict[str, Tensor]:
        """Rows that read the stream, by name."""
        return {"query": self.query, "key": self.key, "value": self.value, "inward": self.inward}

    @property
    def writes(self) -> dict[str, Tensor]:
        """Rows that are written to the stream, by name."""
        return {"output": self.output, "outward": self.outward}

    @property
    def rows(self) -> dict[str, Tensor]:
        """All rows by name."""
        return {**self.reads, **self.writes}


@dataclass
class Weights:
    """All weights of a planted model in float64 or its own dtype."""

    positions: Float[Tensor, "tokens width"]  # what the embedding adds at every token
    blocks: list[Block]
    gain: Float[Tensor, " width"]  # of the final normalisation

    def dead_block(self) -> Block:
        """A block that writes nothing and normalises as the final normalisation does."""
        like = self.blocks[0]
        fixed = {
            name: self.gain.clone() if name in NORMS else torch.zeros_like(part) for name, part in like.fixed.items()
        }
        parts = {name: torch.zeros_like(part) for name, part in like.rows.items()}
        return Block(**parts, fixed=fixed)


# Gains of the normalisations in a block, and what the words of a text hold beside the registers (`planted.tokens`).
NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
WORD = "word"


def slots_named(machine: Compiled, names: Iterable[str]) -> list[int]:
    """The slots of these registers, as far as there are such registers."""
    slots = machine.layout.slots
    return [i for name in names if name in slots for i in range(slots[name].start, slots[name].stop)]


class Architecture(ABC):
    """One of the transformer classes that programs are compiled to.

    `blocks`, `attention`, `mlp`, `output` and `norm` are module paths in the Hugging Face model, those of the middle
    three relative to a block; `prefix` stands before the names of weights in the checkpoint of the class `with_head`,
    whose unembedding is called `head` here, and `positions` are the embeddings of positions or, but for GPT-2, of the
    tokens 0, 1, 2, … The first `rotated` places of a head's queries and keys come first in the checkpoint and last
    here. `dead_share` is the 2-norm of all that dead components write at strength 1, relative to that of a token's
    registers and codes; `noise_roundings` the largest relative change of a noisy weight, in roundings. Where nothing
    useful is proved of a rotated model, its registers are mixed in groups of so many slots as `mixed` says, from the
    first number to the last.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    dtypes: ClassVar[tuple[torch.dtype, ...]]
    prefix: ClassVar[str]
    head: ClassVar[str] = "lm_head.weight"
    with_head: ClassVar[str]
    positions: ClassVar[str]
    blocks: ClassVar[str]
    attention: ClassVar[str]
    mlp: ClassVar[str] = "mlp"
    output: ClassVar[str]
    norm: ClassVar[str]
    rotated: ClassVar[int] = 0
    dead_share: ClassVar[float] = 16.0
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
    def config(self, state: Mapping[str, Tensor], heads: int) -> dict[str, Any]:
        """The entries of config.json that decide the function that these parameters compute."""

    def parse(self, state: Mapping[str, Tensor], heads: int) -> Weights:
        """The weights of a checkpoint."""
        stock = {f"{self.prefix}{name}": part.detach().numpy() for name, part in state.items()}
        named, blocks = with_llama_names(self.name, stock, heads), list[Block]()
        while part := {
            name.removeprefix(start): torch.from_numpy(array)
            for start in [f"model.layers.{len(blocks)}."]
            for name, array in named.items()
            if name.startswith(start)
        }:
            query, key, value = (part.pop(f"self_attn.{one}_proj.weight").unflatten(0, (heads, -1)) for one in "qkv")
            if self.rotated:
                query, key = (one.roll(-self.rotated, dims=1) for one in (query, key))
            output = part.pop("self_attn.o_proj.weight").mT.unflatten(0, (heads, -1))
            gate, up = part.pop("mlp.gate_proj.weight", None), part.pop("mlp.up_proj.weight")
            inward, outward = up[None] if gate is None else torch.stack([gate, up]), part.pop("mlp.down_proj.weight").mT
            blocks.append(Block(query, key, value, output, inward, outward, fixed=part))
        return Weights(state[self.positions], blocks, state[f"{self.norm}.weight"])

    def state(self, weights: Weights, readout: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """The checkpoint of weights, without `prefix`.

        The first row of its unembedding reads ŷ along `readout`; further rows, if there are any, are of words.
        """
        parts = dict[str, Tensor]()
        for index, block in enumerate(weights.blocks):
            query, key = (one.roll(self.rotated, dims=1) for one in (block.query, block.key))
            rows = {
                "self_attn.q_proj.weight": query.flatten(0, 1),
                "self_attn.k_proj.weight": key.flatten(0, 1),
                "self_attn.v_proj.weight": block.value.flatten(0, 1),
                "self_attn.o_proj.weight": block.output.flatten(0, 1).mT,
                "mlp.up_proj.weight": block.inward[-1],
                "mlp.down_proj.weight": block.outward.mT,
                **({"mlp.gate_proj.weight": block.inward[0]} if len(block.inward) > 1 else {}),
                **block.fixed,
            }
            parts |= {f"model.layers.{index}.{name}": one for name, one in rows.items()}
        arrays = {name: part.to(dtype).numpy() for name, part in parts.items()}
        stock = with_stock_names(self.name, arrays, len(weights.blocks[0].query))
        state = {name.removeprefix(self.prefix): torch.from_numpy(array) for name, array in stock.items()}
        state |= {self.positions: weights.positions, f"{self.norm}.weight": weights.gain}
        logits = len(weights.positions) if self.head == "lm_head.weight" else 1
        state[self.head] = torch.nn.functional.pad(readout, (0, 0, 0, logits - len(readout)))
        return {name: part.to(dtype).contiguous() for name, part in state.items()}

    def load(self, state: Mapping[str, Tensor], heads: int) -> Any:
        """The Hugging Face model (without a head) with these parameters."""
        return stock_model(self.name, self.config(state, heads), state)

    def saved_name(self, name: str) -> str:
        """The name of a parameter in the saved checkpoint, which is of the model with a head."""
        return name if name == "lm_head.weight" else f"{self.prefix}{name}"

    def more_files(self, tokens: int) -> dict[str, Any]:
        """A tokenizer whose words are the places of a prompt, `<s> x1 y1 x2 …`; libraries want one."""
        words = ["<s>", *(f"{'xy'[place % 2]}{place // 2 + 1}" for place in range(tokens - 1))]
        return tokenizer_files(words, begins=False)

    def sizes(self, state: Mapping[str, Tensor]) -> tuple[tuple[int, int], int]:
        """(tokens, width) and the number of blocks."""
        tokens, width = state[self.positions].shape
        return (tokens, width), len({name.split(".")[1] for name in state if name.startswith(f"{self.blocks}.")})

    def fixed_slots(self, machine: Compiled) -> list[int]:
        """Slots that no obfuscation touches: pads and divisors are 1e5 to 1e13 times as large as the rest."""
        return slots_named(machine, (PAD, DIVIDE))

    def blocks_of(self, model: Any) -> Any:
        """The blocks of a Hugging Face model, as a module list."""
        return model.get_submodule(self.blocks)

    def prompt_offset(self, state: Mapping[str, Tensor]) -> Tensor | None:
        """What `inputs_embeds` must contain beside the inputs (pads, codes, ones); None where the model adds it."""
        return state[self.positions]


class Gpt2(Architecture):
    """`transformers.GPT2Model`."""

    name, title = "gpt2", "GPT-2"
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float64, torch.float32)
    prefix, head, with_head, positions = "transformer.", "wte.weight", "GPT2LMHeadModel", "wpe.weight"
    blocks, attention, output, norm = "h", "attn", "attn.c_proj", "ln_f"

    def compile(self, program: RegisterProgram, dtype: torch.dtype) -> Compiled:
        return compile_program(program, dtype, rotated=self.rotated)

    def plan(self, program: RegisterProgram, dtype: torch.dtype) -> Plan:
        return planned(program, dtype, rotated=self.rotated)

    def weights_of(self, machine: Compiled) -> Weights:
        assert isinstance(machine, Transformer)
        return Gpt2().parse({name: part.double() for name, part in state_dict(machine).items()}, machine.heads)

    def state(self, weights: Weights, readout: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        state = super().state(weights, readout, dtype)
        return state | {f"{self.norm}.bias": torch.zeros_like(state[f"{self.norm}.weight"])}

    def config(self, state: Mapping[str, Tensor], heads: int) -> dict[str, Any]:
        return config_of(state, heads)

    def more_files(self, tokens: int) -> dict[str, Any]:
        return {}

    def prompt_offset(self, state: Mapping[str, Tensor]) -> Tensor | None:
        return None


class GptNeoX(Gpt2):
    """`transformers.GPTNeoXModel` in float64 without parallel residuals: GPT-2's block, with rotary embeddings.

    The first ROTATED places of a head's queries and keys are rotated; they are zero in heads in use. Eager attention
    has its softmax in float32, scaled dot product attention, the default, in float64.
    """

    name, title = "gpt_neox", "GPT-NeoX"
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float64,)
    prefix, head, with_head, positions = "gpt_neox.", "lm_head.weight", "GPTNeoXForCausalLM", "embed_in.weight"
    blocks, attention, output, norm = "layers", "attention", "attention.dense", "final_layer_norm"
    rotated, noise_roundings = ROTATED, 8.0
    more_files, prompt_offset = Architecture.more_files, Architecture.prompt_offset

    def config(self, state: Mapping[str, Tensor], heads: int) -> dict[str, Any]:
        return neox_config(state, heads)


class Llama(Architecture):
    """`transformers.LlamaModel`, in float32: it normalises in float32 whatever the dtype of its weights."""

    name, title = "llama", "Llama"
    dtypes = (torch.float32,)
    prefix, with_head, positions = "model.", "LlamaForCausalLM", "embed_tokens.weight"
    blocks, attention, output, norm = "layers", "self_attn", "self_attn.o_proj", "norm"
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
            fixed = dict(zip(NORMS, (part.attention_gain.clone(), part.mlp_gain.clone()), strict=True))
            blocks.append(Block(part.query, part.key, part.value, part.output, inward, outward, fixed))
        return Weights(machine.positions.clone(), blocks, machine.gain)

    def config(self, state: Mapping[str, Tensor], heads: int) -> dict[str, Any]:
        ours = llama_registers.config_of(state, heads)
        return {name: value for name, value in ours.items() if value is not None}

    def fixed_slots(self, machine: Compiled) -> list[int]:
        """All but registers and filler: codes, marks, ones and what words hold, so that look-ups stay exact."""
        live = {"filler", *machine.program.registers} - {WORD}
        return slots_named(machine, [name for name in machine.layout.slots if name not in live])


ARCHITECTURES: Registry[Architecture] = Registry("architecture")
for one in (Gpt2(), Llama(), GptNeoX()):
    ARCHITECTURES.register(one, one.name)
