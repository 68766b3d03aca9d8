"""DFlash2's grouped dynamic convolution inside a block (specification 2.1).

    delta            = kernel_projection(x)  viewed [*, bs, side, tap, group]
    coef[side,p,t,c] = base_kernel[side,t,c] + delta[p,side,t, c // g]
    conv(side,u)[p,c] = sum over t = 0..Kc-1, t <= p  of  coef[side,p,t,c] * u[p-t,c]

Side 0 stands before a sublayer, side 1 after it; the deltas of both come from the normed sublayer input x. It looks
only back, never over a block's border; context tokens are not convolved.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BlockConv(nn.Module):
    """The convolution around one sublayer; an identity when fresh (init.py)."""

    def __init__(self, hidden_size: int, kernel_size: int, group_size: int) -> None:
        super().__init__()
        self.kernel_size, self.group_size = kernel_size, group_size
        self.base_kernel = nn.Parameter(torch.empty(2, kernel_size, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, 2 * kernel_size * (hidden_size // group_size), bias=False)

    def coefficients(self, x: Tensor, block_size: int) -> Tensor:
        """x: normed sublayer input [B, Q, H] -> fp32 [B, Q/bs, bs, 2, Kc, H]."""
        rows, length, hidden = x.shape
        groups = hidden // self.group_size
        delta = self.kernel_projection(x).float()
        delta = delta.view(rows, length // block_size, block_size, 2, self.kernel_size, groups)
        return self.base_kernel.float() + delta.repeat_interleave(self.group_size, dim=-1)

    def forward(self, u: Tensor, coefficients: Tensor, side: int) -> Tensor:
        """u: [B, Q, H], blocks one after another -> the same shape and dtype; sums in fp32."""
        rows, blocks, block_size = coefficients.shape[:3]
        blocked = u.view(rows, blocks, block_size, -1).float()
        total = torch.zeros_like(blocked)
        for tap in range(min(self.kernel_size, block_size)):
            past = F.pad(blocked[:, :, : block_size - tap], (0, 0, tap, 0))  # zero before slot 0
            total = total + coefficients[..., side, tap, :] * past
        return total.view_as(u).to(u.dtype)
