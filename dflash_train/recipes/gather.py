"""The whole weights of a module that FSDP2 may have sharded, without a word of torch.distributed: a sharded parameter
knows how to gather itself, and its mesh knows this rank."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def whole_state(module: nn.Module) -> tuple[dict[str, Tensor], bool]:
    """(state dict of plain tensors, whether this rank is the one to write it). Every rank must call it."""
    state, writes = {}, True
    for name, value in module.state_dict().items():
        shard: Any = value.detach()
        if hasattr(shard, "full_tensor"):
            writes = shard.device_mesh.get_rank() == 0
            shard = shard.full_tensor()
        state[name] = shard.cpu()
    return state, writes
