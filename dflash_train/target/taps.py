"""Taps: the residual stream after chosen decoder layers, read by forward hooks.

Tap i is the output of decoder layer i (zero-based), before the final norm. `output_hidden_states` is not used: its
index is shifted by one, and its last entry is post-norm (specification 1.2). Servers gather taps in the order of the
layers, so a list that does not rise would train one thing and serve another: it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dflash_train.errors import TargetError


def check_tap_ids(tap_ids: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """The tap ids as a tuple. Raises TargetError unless they rise strictly within [0, num_layers)."""
    ids = tuple(tap_ids)
    if list(ids) != sorted(set(ids)):
        raise TargetError(f"taps {list(ids)} must rise: servers read taps in layer order; write {sorted(set(ids))}")
    if ids and (ids[0] < 0 or ids[-1] >= num_layers):
        raise TargetError(f"taps {list(ids)}: the target has layers 0 to {num_layers - 1}")
    return ids


class TapReader:
    """Collects what the tapped layers give during one forward pass of the decoder."""

    def __init__(self, tap_ids: tuple[int, ...], hidden_size: int) -> None:
        self.tap_ids = tap_ids
        self.hidden_size = hidden_size
        self._outputs: dict[int, Tensor] = {}

    def keep(self, tap_id: int, output: Any) -> None:
        """Takes one layer's output. Raises TargetError if it is not a [B, S, H] tensor, or comes twice."""
        hidden = output[0] if isinstance(output, tuple) else output
        if not isinstance(hidden, Tensor) or hidden.dim() != 3 or hidden.shape[-1] != self.hidden_size:
            seen = tuple(hidden.shape) if isinstance(hidden, Tensor) else type(hidden).__name__
            raise TargetError(f"layer {tap_id} of the target gives {seen}, not [B, S, {self.hidden_size}]")
        if tap_id in self._outputs:
            raise TargetError(f"layer {tap_id} of the target ran twice in one pass: its tap is not defined")
        self._outputs[tap_id] = hidden

    def taps(self, like: Tensor) -> Tensor:
        """[B, S, T*H] in ascending order of layer; `like` [B, S, H] gives the shape where there is no tap."""
        missing = [i for i in self.tap_ids if i not in self._outputs]
        if missing:
            raise TargetError(f"layers {missing} of the target did not run in this pass")
        if not self.tap_ids:
            return like.new_empty(*like.shape[:2], 0)
        return torch.cat([self._outputs[i] for i in self.tap_ids], dim=-1)


@contextmanager
def read_taps(layers: nn.ModuleList, tap_ids: tuple[int, ...], hidden_size: int) -> Iterator[TapReader]:
    """Hooks on the tapped layers for the length of the `with` block; they are gone after it, whatever happens."""
    reader = TapReader(tap_ids, hidden_size)
    handles = [
        layers[i].register_forward_hook(lambda _module, _args, output, i=i: reader.keep(i, output)) for i in tap_ids
    ]
    try:
        yield reader
    finally:
        for handle in handles:
            handle.remove()
