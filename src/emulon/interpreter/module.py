"""The one frozen two-layer attention module that runs any program (Hu et al. 2025, Theorem 4.2, Corollary 4.2.1).

Layer 1: for every row θ of the prompt's W_K, W_Q, W_V a head averages the identity grid with the weights of its softmax
at θ·x, for every token x. Layer 2: one head with W_K = [I 0 0], W_Q = [0 I 0], W_V = [0 0 I] attends. Nothing in here
knows an algorithm; what is computed is decided by the prompt alone.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, cast, get_args, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.attention import Head, attend
from emulon.certify import Certificate
from emulon.certify.certificate import SealedModule, require_own_dtype
from emulon.certify.domain import require_within
from emulon.core import Progress, silent
from emulon.core.arrays import at_a_time, bits
from emulon.core.errors import BadShape, EmulonError, unknown
from emulon.core.hub import HubMixin
from emulon.core.names import warn_renamed
from emulon.interpreter.identity_grid import IdentityGrid, identity_grid

# Every token, head and score ("reference"); keys and values of the data computed once, and certified-negligible tokens
# left out ("fast"); the same with its step recorded as a CUDA graph.
Mode = Literal["fast", "reference", "cuda_graph"]
# Values of the earlier argument `path`, which go with 0.4.
EARLIER: dict[str, Mode] = {"faithful": "reference", "captured": "cuda_graph"}
Outcome = TypeVar("Outcome", covariant=True)
# Layer 1 holds rows × tokens × keys numbers: larger ones are done in slices of about this many.
SLICE = 1 << 24
# No more numbers than this are read by all keys: what segments save is less than what they take to begin with. (Times
# more on a GPU, where segments ask the host, and a step that is recorded must not.)
FEW = 1 << 6


@dataclass(frozen=True)
class Capacity:
    """The largest prompt an interpreter takes.

    Attributes:
        features: Of a token.
        tokens: Of a prompt.
        width: Rows of the emulated head.
        reach: Largest |θ·x| of a row θ of the head and a token x.
    """

    features: int
    tokens: int
    width: int
    reach: float

    def __or__(self, other: Capacity) -> Capacity:
        return Capacity(*map(max, astuple(self), astuple(other)))

    def __contains__(self, other: Capacity) -> bool:
        return (self | other) == self


@runtime_checkable
class Runnable(Protocol[Outcome]):
    """What an interpreter asks of a program: its size, its certificate on an identity grid, and how to run it."""

    @property
    def capacity(self) -> Capacity: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def certificate_on(self, line: IdentityGrid) -> Certificate: ...

    def run_on(self, interpreter: Interpreter, x: Any, y: Any, mode: Mode, report_progress: Progress) -> Outcome: ...


class Interpreter(SealedModule, HubMixin):
    """The frozen two-layer transformer: its weights are buffers, and `sha256` is the same before and after every run.

    Args:
        capacity: The largest prompt it takes. `Interpreter.fitting(*programs)` is the smallest that fits programs.
        dtype: float64 or float32.

    Example:
        >>> Interpreter.fitting(program).run(program, x, y).weights
    """

    slopes: Tensor
    intercepts: Tensor
    values: Tensor

    def __init__(self, capacity: Capacity, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.identity: IdentityGrid = identity_grid(capacity.reach, dtype)
        self.capacity = Capacity(capacity.features, capacity.tokens, capacity.width, self.identity.reach)
        for name in ("slopes", "intercepts", "values"):
            self.register_buffer(name, getattr(self.identity.grid, name).clone())
        identity = torch.eye(3 * capacity.width, dtype=dtype, device="cpu")
        self.assemble = Head(*identity.split(capacity.width), name="layer 2")

    def _write(self, folder: Path) -> None:
        from emulon.interpreter.files import write_folder

        write_folder(self, folder)

    @classmethod
    def _read(cls, folder: Path) -> Interpreter:
        from emulon.interpreter.files import WEIGHTS, load_interpreter

        return load_interpreter(folder / WEIGHTS)

    @classmethod
    def fitting(cls, *programs: Runnable[object]) -> Interpreter:
        """The smallest interpreter that all these programs fit into."""
        if not programs:
            raise BadShape("Interpreter.fitting needs at least one program")
        capacity = programs[0].capacity
        for program in programs:
            if program.dtype != programs[0].dtype:
                raise EmulonError(f"one interpreter has one dtype: {programs[0].dtype} or {program.dtype}, not both")
            capacity = capacity | program.capacity
        return cls(capacity, programs[0].dtype)

    @property
    def dtype(self) -> torch.dtype:
        return self.slopes.dtype

    @property
    def device(self) -> torch.device:
        return self.slopes.device

    def on(self, device: torch.device | str) -> Interpreter:
        """The same interpreter on a device: itself where it is there, else a copy."""
        if self.slopes.to(device).device == self.device:
            return self
        return copy.deepcopy(self, {id(self.identity): self.identity}).to(device)

    @property
    def sha256(self) -> str:
        """Of every frozen number, in order, and of the capacity."""
        digest = hashlib.sha256(repr(self.capacity).encode())
        for name, buffer in self.named_buffers():
            digest.update(name.encode())
            digest.update(bits(buffer))
        return digest.hexdigest()

    def extra_repr(self) -> str:
        c = self.capacity
        return (
            f"features={c.features}, tokens={c.tokens}, width={c.width}, reach={c.reach:g}, "
            f"heads={3 * c.width}+1, keys={len(self.slopes)}, sha256={self.sha256[:12]}…"
        )

    def run(
        self,
        program: Runnable[Outcome],
        x: Any,
        y: Any = None,
        mode: str = "fast",
        report_progress: Progress = silent,
        device: torch.device | str | None = None,
        *,
        path: str | None = None,
    ) -> Outcome:
        """Run a program on data.

        Args:
            program: What `emulon.compile` or `emulon.compile_network` returned, for this interpreter's dtype and size.
            x: Array of numbers (..., samples, features).
            y: Array of numbers (..., samples); a network takes none.
            mode: "fast"; "reference", which computes every token, head and score, and through which gradients flow; or
                "cuda_graph", the fast mode with its step recorded on a GPU.
            report_progress: Called with a message and the part that is done.
            device: Where to run; by default where the interpreter is.
            path: Earlier name of `mode`.

        Returns:
            The program's run: weights or outputs, certificate and audit.

        Raises:
            OutOfDomain: The data, or a state on the way, are outside the domain that the program was compiled for.
        """
        mode = _current_mode(mode, path)
        if mode not in get_args(Mode):
            raise EmulonError(unknown("mode", mode, get_args(Mode)))
        self.require_program(program)
        require_own_dtype()
        return program.run_on(self if device is None else self.on(device), x, y, cast(Mode, mode), report_progress)

    def certificate(self, program: Runnable[object]) -> Certificate:
        """The error bound of a program on this interpreter, for every input of its domain."""
        self.require_unchanged()
        return program.certificate_on(self.identity)

    def read_quickly(self, s: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Layer 1 on numbers θ·x already formed, elementwise; of many by the keys of non-negligible weight alone."""
        if s.numel() > at_a_time(FEW, s.device):
            return self.identity.read(s)
        scores = torch.outer(s.reshape(-1), self.slopes).add_(self.intercepts)
        return (torch.softmax(scores, dim=-1) @ self.values).view(s.shape)

    def project(
        self, tokens: Float[Tensor, "... tokens features"], rows: Float[Tensor, "... rows features"]
    ) -> Float[Tensor, "... tokens rows"]:
        """Layer 1 as it stands: a head per row θ with keys (slope_r·θ, intercept_r), queries (x, 1), values value_r."""
        if rows.ndim == 2 < tokens.ndim:  # it sees one token at a time: many prompts with the same head are one
            flat: Tensor = self.project(tokens.flatten(0, -2), rows)
            return flat.reshape(*tokens.shape[:-1], len(rows))
        queries = torch.cat([tokens, torch.ones_like(tokens[..., :1])], dim=-1)
        out = []
        for part in rows.split(max(1, SLICE // (tokens.shape[-2] * len(self.slopes))), dim=-2):
            keys = self.slopes[:, None] * part.unsqueeze(-2)
            bias = self.intercepts[:, None].expand(*keys.shape[:-1], 1)
            heads = attend(queries.unsqueeze(-3), torch.cat([keys, bias], dim=-1), self.values[:, None], name="layer 1")
            out.append(heads.squeeze(-1).mT)
        return torch.cat(out, dim=-1)

    def forward(
        self,
        tokens: Float[Tensor, "... tokens features"],
        w_k: Float[Tensor, "... width features"],
        w_q: Float[Tensor, "... width features"],
        w_v: Float[Tensor, "... out features"],
        queries: int | None = None,
    ) -> Float[Tensor, "... queries out"]:
        """The emulated head on a prompt: every token, every head, every score of both layers that W_O keeps.

        Narrower tokens and heads are padded with zeros to the capacity. Of the tokens, W_O keeps the first `queries`.
        """
        c = self.capacity
        self._require_fits(tokens, w_k, w_q, w_v)
        tokens = nn.functional.pad(tokens, (0, c.features - tokens.shape[-1]))
        out_width = w_v.shape[-2]
        rows = [nn.functional.pad(w, (0, c.features - w.shape[-1], 0, c.width - w.shape[-2])) for w in (w_k, w_q, w_v)]
        lead = torch.broadcast_shapes(*(w.shape[:-2] for w in rows))
        stacked = torch.cat([w.expand(*lead, *w.shape[-2:]) for w in rows], dim=-2)
        projected = self.project(tokens, stacked)
        asking = projected if queries is None else projected[..., :queries, :]
        out: Tensor = self.assemble(projected, asking)
        return out[..., :out_width]

    def require_program(self, program: Runnable[object]) -> None:
        """Refuse a program made for another dtype, or for a larger interpreter."""
        if program.dtype != self.dtype:
            raise EmulonError(f"the program is in {program.dtype}, the interpreter in {self.dtype}; compile for it")
        asked, c = program.capacity, self.capacity
        if asked not in c:
            raise BadShape(
                f"the program needs {asked.tokens} tokens of {asked.features} features, a head of width {asked.width} "
                f"and numbers up to {asked.reach:.4g}; this interpreter has {c.tokens}, {c.features}, {c.width} and "
                f"{c.reach:.4g}: build one with Interpreter.fitting(program)"
            )

    def _require_fits(self, tokens: Tensor, w_k: Tensor, w_q: Tensor, w_v: Tensor) -> None:
        c = self.capacity
        width = max(w.shape[-2] for w in (w_k, w_q, w_v))
        asked = Capacity(tokens.shape[-1], tokens.shape[-2], width, 0.0)
        if asked not in c:
            raise BadShape(
                f"the prompt has {asked.tokens} tokens of {asked.features} features and a head of width {width}; this "
                f"interpreter takes {c.tokens}, {c.features} and {c.width}: build one with Interpreter.fitting(program)"
            )
        for name, w in (("W_K x", w_k), ("W_Q x", w_q), ("W_V x", w_v)):
            require_within(c.reach, **{name: tokens @ w.mT})


def _current_mode(mode: str, path: str | None) -> str:
    """`mode`, or today's name of what an earlier caller passed as `path`."""
    given = mode if path is None else path
    if path is not None or given in EARLIER:
        warn_renamed(f"path={given!r}", f"mode={EARLIER.get(given, given)!r}", stacklevel=4)
    return EARLIER.get(given, given)
