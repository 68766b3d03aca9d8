"""These tests are of the CPU, on a machine with a GPU too: bit for bit is promised there alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def no_gpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setenv("CUDA_VISIBLE_DEVICES", "")  # for the processes that tests start
        yield
