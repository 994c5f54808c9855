"""A frozen module with a certificate that holds for its own numbers, and is refused once they change."""

from __future__ import annotations

import hashlib
from abc import ABCMeta
from typing import Any

import torch
from torch import Tensor, nn

from emulon.certify.certificate import Certificate
from emulon.core.arrays import ArrayFormat, as_tensor, bits
from emulon.core.errors import NotCertified, OutOfDomain


def fingerprint(module: nn.Module) -> str:
    """sha256 of every buffer: its name, its dtype, its bits."""
    digest = hashlib.sha256()
    for name, buffer in module.named_buffers():
        digest.update(f"{name} {buffer.dtype} {tuple(buffer.shape)}".encode())
        digest.update(bits(buffer))
    return digest.hexdigest()


class _Sealing(ABCMeta):
    """Seals a module once it is whole: when the last of its constructors has returned."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        made = super().__call__(*args, **options)
        made.seal()
        return made


class SealedModule(nn.Module, metaclass=_Sealing):
    """The certificate is about the numbers, and the dtype, that the module was made with.

    `.half()`, an edited buffer or loaded weights make it another module: its certificate is then refused
    (`NotCertified`). So is running it under autocast, which computes in another dtype. An output that is not finite
    is refused, too: no bound covers it.

    `torch.compile(module, fullgraph=True)` and `torch.export` trace the tensor operations alone. What depends on
    numbers is then not refused: the certificate holds for data of the domain, in the module's own dtype, as before, but
    nothing checks that they are. After `module.compile(fullgraph=True)` answers and dtype are still checked, inputs
    are not. Calls that are not compiled check everything.
    """

    _sealed: str | None = None

    def seal(self) -> None:
        """Take the hash of the buffers that the certificate is about."""
        self._sealed = fingerprint(self)

    def require_unchanged(self) -> None:
        if self._sealed not in (None, fingerprint(self)):
            raise NotCertified(
                f"the weights of this {type(self).__name__} are not those it was certified with (another dtype, or "
                "other numbers): its certificate is withdrawn; build it anew"
            )

    def __call__(self, *args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return super().__call__(*args, **options)
        require_own_dtype()
        given = ArrayFormat.of(args[0]) if args else ArrayFormat()
        out = super().__call__(*map(_read, args), **{name: _read(value) for name, value in options.items()})
        if not isinstance(out, Tensor):
            return out
        require_answer(out)
        return given.back(out)


class CertifiedModule(SealedModule):
    """A sealed module with one certificate."""

    _sealed_certificate: Certificate

    @property
    def certificate(self) -> Certificate:
        self.require_unchanged()
        return self._sealed_certificate

    @certificate.setter
    def certificate(self, certificate: Certificate) -> None:
        self._sealed_certificate = certificate


def _read(value: Any) -> Any:
    """Numbers on their own are options of a call, and no data."""
    return as_tensor(value) if hasattr(value, "__array__") or isinstance(value, list) else value


def require_own_dtype() -> None:
    """Refuse to run under autocast, or where products of float32 may be of less."""
    if torch.get_float32_matmul_precision() != "highest":
        raise NotCertified(
            "products of float32 are of fewer bits here than the certificate is about; "
            "torch.set_float32_matmul_precision('highest')"
        )
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise NotCertified("autocast computes in another dtype than the certificate is about; leave it for this call")


def require_answer(out: Tensor) -> None:
    """Refuse an answer that is not finite: no bound covers it."""
    if not torch.isfinite(out).all():
        raise OutOfDomain(f"a number overflowed {str(out.dtype).removeprefix('torch.')} on the way; use a wider dtype")
