"""Which layers a draft is made of: Transformer Engine's for bfloat16 on a GPU, torch's everywhere else."""

import logging

import pytest
import torch
from torch import nn

from dflash_train.config import Precision
from dflash_train.engine.ops_te import choose_ops, without_extra_state
from dflash_train.model.ops import TORCH_OPS

CUDA = torch.device("cuda", 0)


@pytest.fixture
def broken_package(tmp_path, monkeypatch):
    """A transformer_engine that is installed and does not load."""
    (tmp_path / "transformer_engine").mkdir()
    (tmp_path / "transformer_engine" / "__init__.py").write_text("raise ImportError('libcudart.so.13: not found')\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("device", "precision"),
    [
        (torch.device("cpu"), Precision.float32),
        (torch.device("cpu"), Precision.bfloat16),
        (CUDA, Precision.float32),  # its float32 product is TF32
    ],
)
def test_torch_makes_the_layers_whatever_is_installed(broken_package, caplog, device, precision):
    assert choose_ops(device, precision) is TORCH_OPS
    assert not caplog.records


def test_an_installation_that_does_not_load_is_named_and_not_used(broken_package, caplog):
    with caplog.at_level(logging.WARNING):
        assert choose_ops(CUDA, Precision.bfloat16) is TORCH_OPS
    assert "libcudart.so.13: not found" in caplog.text


def test_extra_state_is_no_part_of_a_state_dict():
    class Scaled(nn.Linear):
        def get_extra_state(self):
            return torch.ones(3)

        def set_extra_state(self, state):
            raise AssertionError("nothing was saved, so nothing is given back")

    layer = without_extra_state(Scaled)(4, 2, bias=False)
    assert set(Scaled(4, 2, bias=False).state_dict()) == {"weight", "_extra_state"}
    assert set(layer.state_dict()) == set(TORCH_OPS.linear(4, 2).state_dict()) == {"weight"}
    layer.load_state_dict(TORCH_OPS.linear(4, 2).state_dict())


def test_the_torch_norm_is_torchs_own():
    norm, x = TORCH_OPS.rms_norm(16, 1e-6), torch.randn(3, 16)
    torch.testing.assert_close(norm(x), nn.functional.rms_norm(x, (16,), eps=1e-6))
    assert set(norm.state_dict()) == {"weight"}
