"""The KV cache of one decoded row, over the transformers versions that we accept (5.17 and later).

Two things differ between them, and this module is the only one that knows: the decoder's argument is called
`past_key_values` or `cache`, and `crop(n)` took the length to keep before it came to refuse positive numbers. A
negative number (tokens to drop) means the same in all of them.

The cache is opened without a config on purpose: every layer then keeps all its keys, those of sliding-window layers too
(their mask hides what is out of the window). A windowed cache cannot be cropped back over what it has thrown away.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field

from torch import nn
from transformers import DynamicCache


@dataclass(frozen=True)
class KVCache:
    """Keys and values of every decoder layer, [1, nkv, length, hd] each."""

    store: DynamicCache = field(default_factory=DynamicCache)

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return int(self.store.get_seq_length())

    def crop(self, length: int) -> None:
        """Keeps the first `length` tokens. Raises ValueError if there are fewer, or if length is negative."""
        surplus = self.length - length
        if surplus < 0 or length < 0:
            raise ValueError(f"cannot crop a cache of {self.length} tokens to {length}")
        if surplus:
            self.store.crop(-surplus)


def cache_argument(decoder: nn.Module) -> str:
    """Name of the decoder's argument that takes a cache."""
    parameters = inspect.signature(decoder.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"
