"""Sharding: FSDP2's fully_shard is the only parallel path, with a mesh of one as with a mesh of many."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from dflash_train.config import Precision

DTYPES = {Precision.float32: torch.float32, Precision.bfloat16: torch.bfloat16}


def shard(module: nn.Module, mesh: DeviceMesh, precision: Precision) -> nn.Module:
    """Shard `module` (fp32 master weights) as one unit; its forward pass runs in `precision`, reductions in fp32.

    As one unit: a draft is small beside its target, and its selector and context projections are used outside the
    root's forward, where the root's parameters stay gathered until the backward pass has ended. The inputs are cast
    too, since the target that gives them may run in another precision.
    """
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[precision], reduce_dtype=torch.float32, cast_forward_inputs=True)
    fully_shard(module, mesh=mesh, mp_policy=policy)
    return module
