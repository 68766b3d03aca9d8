"""Triton 3.9's interpreter refuses masks that are integers in numpy, which a compiled kernel takes: cast them."""

import functools
import os

import numpy as np

MASK_ARGUMENT = {"create_masked_load": 1, "create_masked_store": 2, "create_atomic_rmw": 3}


def register():
    """vLLM calls this in each of its processes."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    for name, place in MASK_ARGUMENT.items():
        method = getattr(InterpreterBuilder, name)
        if not hasattr(method, "__wrapped__"):
            setattr(InterpreterBuilder, name, with_bool_mask(method, place, TensorHandle))


def with_bool_mask(method, place, handle_type):
    @functools.wraps(method)
    def call(self, *arguments, **named):
        mask = arguments[place] if place < len(arguments) else None
        if mask is not None and mask.data.dtype != np.bool_:
            cast = handle_type(mask.data.astype(np.bool_), mask.dtype)
            arguments = (*arguments[:place], cast, *arguments[place + 1 :])
        return method(self, *arguments, **named)

    return call
