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

from dflash_train.errors import ConfigError

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


@dataclass(frozen=True)
class Place:
    """What the environment says of this process. alone: RANK is unset."""

    rank: int
    local_rank: int
    world_size: int
    alone: bool

    @classmethod
    def read(cls) -> Place:
        """Raises ConfigError where RANK is set and the rest is missing, no number, or contradicts it."""
        if "RANK" not in os.environ:
            return cls(0, int(os.environ.get("LOCAL_RANK", 0)), 1, alone=True)
        names = ("LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if missing := [name for name in names if not os.environ.get(name)]:
            raise ConfigError(f"RANK is set and {', '.join(missing)} is not: set all five, or none for one process")
        try:
            rank, local_rank, world_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
            int(os.environ["MASTER_PORT"])
        except ValueError as error:
            raise ConfigError(f"RANK, LOCAL_RANK, WORLD_SIZE and MASTER_PORT are integers: {error}") from None
        if not 0 <= rank < world_size:
            raise ConfigError(f"RANK {rank} is not one of WORLD_SIZE {world_size}, which counts from 0")
        return cls(rank, local_rank, world_size, alone=False)


@contextmanager
def process_group() -> Iterator[Processes]:
    """The group that RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe, or a group of one.

    Raises ConfigError where they describe none.
    """
    place = Place.read()
    rank, world_size, local_rank = place.rank, place.world_size, place.local_rank
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = dist.HashStore() if place.alone else None
    dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT, store=store, rank=rank, world_size=world_size)
    try:
        yield Processes(rank, world_size, device, init_device_mesh(device.type, (world_size,), mesh_dim_names=("dp",)))
    finally:
        dist.destroy_process_group()
