"""Ranks, devices and the few collectives that the loop needs.

Where RANK is unset the process opens a group of one on a HashStore, so that one process runs the same code as many:
`fully_shard` needs a mesh, and a mesh needs a group.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

COLLECTIVE_TIMEOUT = timedelta(minutes=20)  # longer than the slowest save, shorter than a wasted link


@dataclass(frozen=True)
class Processes:
    """This process among the others."""

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh

    @property
    def is_zero(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum over ranks, on every rank."""
        total = values.to(self.device, copy=True)
        dist.all_reduce(total)
        return total

    def any(self, flag: bool) -> bool:
        """True on every rank where it is True on one."""
        return bool(self.sum(torch.tensor([int(flag)])).item())

    def from_zero(self, value: int) -> int:
        """Rank zero's value, on every rank."""
        box = torch.tensor([value], dtype=torch.int64, device=self.device)
        dist.broadcast(box, src=0)
        return int(box.item())

    def wait(self) -> None:
        """Until every rank is here."""
        dist.barrier()


@contextmanager
def process_group() -> Iterator[Processes]:
    """The group that RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe, or a group of one."""
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT, rank=rank, world_size=world_size)
    else:
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield Processes(rank, world_size, device, init_device_mesh(device.type, (world_size,), mesh_dim_names=("dp",)))
    finally:
        dist.destroy_process_group()
