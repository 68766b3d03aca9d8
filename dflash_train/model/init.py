"""The initial value of every parameter of a fresh draft, in one place.

| parameter                              | value                   | why                                             |
|----------------------------------------|-------------------------|-------------------------------------------------|
| norms                                  | 1                       |                                                 |
| Linear weights                         | N(0, initializer_range) | the Hugging Face default that drafts start from |
| conv.base_kernel                       | tap 0: 1, others: 0     | identity: a fresh DFlash2 is the plain DFlash   |
| conv.kernel_projection                 | 0                       | likewise                                        |
| candidate_selector.successor_codebook  | 0                       | the selector changes nothing at step 0 ...      |
| candidate_selector.predecessor_codebook| N(0, 0.02)              | ... and learns from step 1 on                   |

Source: specification 1.8, 2.1, 2.2.
"""

from __future__ import annotations

import torch
from torch import nn

from dflash_train.model.draft import DraftModel


@torch.no_grad()
def initialise(draft: DraftModel, seed: int) -> DraftModel:
    """Fill every parameter of `draft` in place, in the order of its names; the same seed gives the same draft."""
    generator = torch.Generator().manual_seed(seed)
    spread = draft.shape.initializer_range
    for name, parameter in draft.named_parameters():
        value = torch.empty(parameter.shape)
        if name.endswith("norm.weight"):
            value.fill_(1.0)
        elif name.endswith("base_kernel"):
            value.zero_()[:, 0] = 1.0
        elif name.endswith(("kernel_projection.weight", "successor_codebook")):
            value.zero_()
        else:
            nn.init.normal_(value, std=spread, generator=generator)
        parameter.copy_(value)
    return draft
