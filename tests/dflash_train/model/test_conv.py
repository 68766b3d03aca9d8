"""The in-block convolution against its formula, element by element (specification 2.1)."""

import pytest
import torch

from dflash_train.model.conv import BlockConv
from dflash_train.model.layer import convolved


@pytest.mark.parametrize(("kernel", "group", "block"), [(2, 4, 8), (3, 2, 4), (2, 8, 1), (4, 8, 3)])
def test_forward_is_the_formula(kernel, group, block):
    torch.manual_seed(0)
    hidden, blocks = 8, 3
    conv = BlockConv(hidden, kernel, group).double().requires_grad_(False)
    torch.nn.init.normal_(conv.base_kernel)
    x, u = torch.randn(1, blocks * block, hidden).double(), torch.randn(1, blocks * block, hidden).double()
    groups = hidden // group
    delta = conv.kernel_projection(x).view(blocks, block, 2, kernel, groups)
    coefficients = conv.coefficients(x, block)
    for side in (0, 1):
        out = conv(u, coefficients, side).view(blocks, block, hidden)
        for b in range(blocks):
            for p in range(block):
                for ch in range(hidden):
                    wanted = sum(
                        (conv.base_kernel[side, t, ch] + delta[b, p, side, t, ch // group])
                        * u[0, b * block + p - t, ch]
                        for t in range(kernel)
                        if t <= p
                    )
                    assert float(out[b, p, ch]) == pytest.approx(float(wanted), abs=1e-5)


def test_side_0_stands_before_the_sublayer_and_side_1_after_it_both_read_from_its_input():
    torch.manual_seed(0)
    conv = BlockConv(8, 2, 4).requires_grad_(False)
    torch.nn.init.normal_(conv.base_kernel)
    x = torch.randn(1, 6, 8)
    coefficients = conv.coefficients(x, 3)
    wanted = conv(torch.tanh(conv(x, coefficients, 0)), coefficients, 1)
    torch.testing.assert_close(convolved(conv, torch.tanh, x, 3), wanted)
    assert convolved(None, torch.tanh, x, 3).equal(torch.tanh(x))
