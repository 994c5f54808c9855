"""Which heads and MLPs ŷ depends on: patching, attributions along edges, pruning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from emulon.planted.benchmark.answers import Answers, library, method
from emulon.planted.benchmark.subject import Change, Subject
from emulon.planted.model import removed_after

# Prompts used by activation patching, which runs the model once per component, and by attribution patching.
PATCHED, ATTRIBUTED = 8, 32


@method("activation-patching")
def activation_patching(subject: Subject) -> Answers:
    """Replace a component's output by its output on another prompt; the score is the change of ŷ (root mean square)."""
    few = subject.few(PATCHED)
    other = few.other_run
    heads = [Change(b, h, other.heads[b, :, :, h]) for b in range(few.blocks) for h in range(few.heads)]
    mlps = [Change(b, None, other.mlps[b]) for b in range(few.blocks)]
    moved = (few.with_changes([*heads, *mlps]) - few.run.answers).square().mean(dim=(1, 2)).sqrt()
    of_heads, of_mlps = torch.split(moved, [len(heads), len(mlps)])
    return Answers(heads=of_heads.unflatten(0, (few.blocks, few.heads)), mlps=of_mlps)


@method("attribution-patching")
def attribution_patching(subject: Subject) -> Answers:
    """Activation patching to first order, (other − own)·∂ŷ/∂output, for all components in one backward pass.

    Nanda 2023; Syed et al. 2023.
    """
    few = subject.few(ATTRIBUTED)
    own, other, slopes = few.run, few.other_run, few.slopes
    heads = ((other.heads - own.heads) * slopes.heads).sum(dim=(2, 4)).abs().mean(dim=1)
    mlps = ((other.mlps - own.mlps) * slopes.mlps).sum(dim=(2, 3)).abs().mean(dim=1)
    return Answers(heads=heads, mlps=mlps)


@method("readout-attribution")
def readout_attribution(subject: Subject) -> Answers:
    """Direct readout attribution: the variation of what a component adds along the readout direction."""
    run = subject.run
    heads = torch.einsum("bpthd,bhd->bhpt", run.heads, subject.output_matrices @ subject.readout)[..., 1::2]
    mlps = (run.mlps @ subject.readout)[..., 1::2]
    return Answers(heads=heads.std(dim=2).mean(dim=-1), mlps=mlps.std(dim=1).mean(dim=-1))


# Prompts and steps of the edge methods, and the rise of the error at which pruning keeps a component, relative to the
# variance of ŷ.
EDGE_PROMPTS, STEPS, KEPT = 16, 5, 1e-6
# Components that pruning tries in one batch.
AT_ONCE = 24
# Modules of a block: the norm before attention, what computes queries, keys and values, and the norm before the MLP.
READERS = {
    "gpt2": ("ln_1", ["attn.c_attn"], "ln_2"),
    "gpt_neox": ("input_layernorm", ["attention.query_key_value"], "post_attention_layernorm"),
    "llama": ("input_layernorm", [f"self_attn.{one}_proj" for one in "qkv"], "post_attention_layernorm"),
}


@method("eap")
def edge_attribution_patching(subject: Subject) -> Answers:
    """Edge attribution patching (Syed et al. 2023): (other_u − own_u)·∂ŷ/∂(input of v) for every edge u → v.

    The inputs of a head are those of its queries, keys and values. A component is as good as its best outgoing edge.
    Differs from the published form in the metric, ŷ itself, and in taking the mean of absolute scores over prompts.
    """
    return _best_edges(subject, steps=1)


@method("eap-ig")
def integrated_edge_attribution(subject: Subject) -> Answers:
    """EAP with gradients averaged over five inputs between the other prompt and the own one (Hanna et al. 2024)."""
    return _best_edges(subject, steps=STEPS)


@method("gim")
def gradient_interaction(subject: Subject) -> Answers:
    """EAP with the gradients of GIM (Edin et al. 2025), by its own package `gim-explain`.

    GIM freezes norms, flattens the softmax in the backward pass and divides the gradients of queries, keys and values.
    The package recognises torch's norms only, so those of a Llama are not frozen.
    """
    gim = library("gim", "gim-explain")
    with explicit_attention(), gim.GIM(subject.model):
        return _best_edges(subject, steps=1)


@method("acdc")
def pruning(subject: Subject) -> Answers:
    """ACDC (Conmy et al. 2023) on heads and MLPs as nodes, all edges out of a node at once.

    From the last component to the first, each gets its output on the other prompt; where the error, squared here
    instead of a KL divergence, rises by less than a threshold, it is never put back. The score is the rise. Runs of
    several components are made at once on a guess, from each alone, of what is put back, and again where it was wrong.
    """
    few = subject.few(PATCHED)
    other, wanted = few.other_run, few.run.answers
    changes = [
        Change(block, head, other.mlps[block] if head is None else other.heads[block, :, :, head])
        for block in reversed(range(few.blocks))
        for head in (None, *reversed(range(few.heads)))
    ]

    def errors(tried: Sequence[Change | tuple[Change, ...]]) -> list[float]:
        return (few.with_changes(tried) - wanted).square().mean(dim=(1, 2)).tolist()

    least, rises, error = KEPT * wanted.var().item(), list[float](), 0.0
    guessed = [alone < least for alone in errors(changes)]
    removed: tuple[Change, ...] = ()
    while len(rises) < len(changes):
        tried, gone = [], removed
        for change, unused in zip(changes[len(rises) :][:AT_ONCE], guessed[len(rises) :], strict=False):
            tried.append((*gone, change))
            gone = (*gone, change) if unused else gone
        for worse, unused in zip(errors(tried), guessed[len(rises) :], strict=False):
            rises.append(worse - error)
            if rises[-1] < least:
                removed, error = (*removed, changes[len(rises) - 1]), worse
            if (rises[-1] < least) != unused:
                break
    scores = torch.tensor(rises, dtype=wanted.dtype, device="cpu").unflatten(0, (few.blocks, -1)).flip(0)
    return Answers(heads=scores[:, 1:].flip(1), mlps=scores[:, 0])


def _best_edges(subject: Subject, steps: int) -> Answers:
    """For every component the best score of an edge out of it, gradients averaged over `steps` inputs."""
    few, size = subject.few(EDGE_PROMPTS), subject.heads + 1
    own, other = few.run, few.other_run
    heads = torch.einsum("bpthd,bhdw->bhptw", other.heads - own.heads, few.output_matrices)
    senders = torch.cat([heads, (other.mlps - own.mlps)[:, None]], dim=1).flatten(0, 1)
    best = senders.new_zeros(len(senders))
    for block, gradients in gradients_of_inputs(few, steps):
        # Heads read what earlier blocks write, an MLP its own block's heads, too, and ŷ everything.
        seen = {"heads": block * size, "mlp": block * size + subject.heads, "answers": len(senders)}
        for reader, gradient in gradients.items():
            mean = gradient.unflatten(1, (steps, -1)).mean(dim=1)
            scores = torch.einsum("uptw,rptw->urp", senders[: seen[reader]], mean).abs().mean(dim=2)
            best[: seen[reader]] = torch.maximum(best[: seen[reader]], scores.amax(dim=1))
    best = best.unflatten(0, (-1, size))
    return Answers(heads=best[:, :-1], mlps=best[:, -1])


def gradients_of_inputs(
    few: Subject, steps: int
) -> Iterator[tuple[int, dict[str, Float[Tensor, "readers prompts tokens width"]]]]:
    """By block, ∂Σŷ/∂stream through every head's queries, keys and values alone, and through the MLP alone."""
    norm, projections, mlp_norm = READERS[few.architecture.name]
    shares = torch.arange(1, steps + 1, dtype=few.prompts.dtype, device="cpu")[:, None, None, None] / steps
    prompts = (few.others + shares * (few.prompts - few.others)).flatten(0, 1)
    blocks, kept = few.architecture.blocks_of(few.model), []
    names = [(block, name) for block in blocks for name in (norm, *projections, mlp_norm)]
    handles = [
        block.get_submodule(name).register_forward_hook(lambda _, inputs, output: kept.append((inputs[0], output)))
        for block, name in names
    ]
    last = few.model.get_submodule(few.architecture.norm)
    handles.append(last.register_forward_hook(lambda _, inputs, output: kept.append((inputs[0], output))))
    with removed_after(handles), torch.enable_grad():
        hidden = few.model(inputs_embeds=prompts.clone().requires_grad_()).last_hidden_state
        wanted = [output for _, output in kept[:-1]] + [kept[-1][0]]
        slopes = torch.autograd.grad(few.answers(hidden).sum(), wanted, allow_unused=True)
    each = len(projections) + 2
    for index, block in enumerate(blocks):
        first = index * each
        projected = torch.cat(slopes[first + 1 : first + each - 1], dim=-1)
        if rotated := few.architecture.rotated:  # a GPT-NeoX has them head by head, and rotated places first
            parts = projected.unflatten(-1, (few.heads, 3, -1)).unbind(-2)
            projected = torch.stack([*(part.roll(-rotated, dims=-1) for part in parts[:2]), parts[2]], dim=2)
        else:
            projected = projected.unflatten(-1, (3, few.heads, -1))
        weights = few.weights.blocks[index]
        reading = torch.stack([weights.query, weights.key, weights.value])
        inward = torch.einsum("ptahd,ahdw->ahptw", projected, reading).flatten(0, 1)
        mlp = slopes[first + each - 1][None]
        yield (
            index,
            {
                "heads": _through(block.get_submodule(norm), kept[first][0], inward),
                "mlp": _through(block.get_submodule(mlp_norm), kept[first + each - 1][0], mlp),
            },
        )
    yield few.blocks, {"answers": slopes[-1][None]}


def _through(norm: Any, stream: Tensor, slopes: Float[Tensor, "readers prompts tokens width"]) -> Tensor:
    """The gradients of a norm's input, from those of its output."""
    with torch.enable_grad():
        inputs = stream.detach().clone().requires_grad_()
        return torch.autograd.grad(norm(inputs), inputs, slopes, is_grads_batched=True)[0]


@contextmanager
def explicit_attention() -> Iterator[None]:
    """Inside, torch's attention is written out, so that a replaced softmax is in effect."""

    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, **rest: Any
    ) -> Tensor:
        scores = query @ key.mT * (rest.get("scale") or query.shape[-1] ** -0.5)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cpu").tril()
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        return torch.softmax(scores, dim=-1) @ value

    before = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = attention  # type: ignore[assignment]  # its rest is in **rest
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = before
