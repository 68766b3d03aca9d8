"""AdamW on fp32 weights, and the learning rate as a pure function of the optimizer step."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dflash_train.config import OptimizerConfig, Schedule, SchedulerConfig


def make_optimizer(module: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the parameters of `module` that require a gradient."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    beta1, beta2 = config.betas
    return torch.optim.AdamW(
        trainable, lr=config.lr, betas=(beta1, beta2), eps=config.eps, weight_decay=config.weight_decay
    )


def learning_rate(step: int, lr: float, config: SchedulerConfig) -> float:
    """Learning rate of optimizer step `step` (from 1).

    Linear warm-up over `warmup_steps`, then constant, or cosine or linear down to `min_ratio * lr` at `horizon`, and
    level after it.
    """
    if step <= config.warmup_steps:
        return lr * step / config.warmup_steps
    if config.kind is Schedule.constant:
        return lr
    assert config.horizon is not None  # resolved
    span = max(config.horizon - config.warmup_steps, 1)
    done = min((step - config.warmup_steps) / span, 1.0)
    fall = 0.5 * (1 + math.cos(math.pi * done)) if config.kind is Schedule.cosine else 1 - done
    return lr * (config.min_ratio + (1 - config.min_ratio) * fall)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip_gradient(module: nn.Module, clip: float) -> Tensor:
    """Scale the gradient to a norm of at most `clip` (0: leave it); returns the norm before, over all ranks."""
    gradients = [p for p in module.parameters() if p.grad is not None]
    norm = torch.nn.utils.clip_grad_norm_(gradients, clip if clip > 0 else math.inf)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
