"""Every leading dimension is a batch: inputs of one dtype and one batch shape."""

from __future__ import annotations

import torch
from torch import Tensor

from emulon.certify.domain import require_real, require_shape
from emulon.core.errors import BadShape


def aligned(dtype: torch.dtype, **parts: tuple[Tensor, tuple[int, ...]]) -> list[Tensor]:
    """The tensors, each given with the sizes its last dimensions must have, broadcast over all others."""
    for name, (tensor, sizes) in parts.items():
        require_shape(tensor, name, *sizes)
        require_real(**{name: tensor})
    leads = {name: tensor.shape[: tensor.ndim - len(sizes)] for name, (tensor, sizes) in parts.items()}
    try:
        lead = torch.broadcast_shapes(*leads.values())
    except RuntimeError:
        shapes = ", ".join(f"{tuple(shape)} for {name}" for name, shape in leads.items())
        raise BadShape(f"the batch dimensions do not fit together: {shapes}") from None
    return [tensor.to(dtype).expand(*lead, *sizes) for tensor, sizes in parts.values()]
