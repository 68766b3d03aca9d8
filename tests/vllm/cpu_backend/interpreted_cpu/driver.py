"""The half of a Triton backend that would drive a device."""

import time

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class Properties:
    """What vLLM reads of a device."""

    def get_device_properties(self, *_):
        return {"multiprocessor_count": 1, "max_shared_mem": 1 << 20, "warpSize": 32, "max_num_regs": 1 << 16}


class InterpretedDriver(DriverBase):
    def __init__(self):
        self.utils = Properties()

    @classmethod
    def is_active(cls):
        return True

    def map_python_to_cpp_type(self, kind):
        return kind

    def get_current_target(self):
        return GPUTarget("cpu", "x86", 1)

    def get_active_torch_device(self):
        return torch.device("cpu")

    def get_current_device(self):
        return 0

    def set_current_device(self, *_):
        """There is one."""

    def get_current_stream(self, *_):
        return 0

    def get_device_interface(self):
        return torch.cpu

    def get_benchmarker(self):
        def milliseconds(call, *, quantiles=None, **_):
            began = time.perf_counter()
            call()
            spent = 1e3 * (time.perf_counter() - began)
            return spent if quantiles is None else [spent] * len(quantiles)

        return milliseconds
