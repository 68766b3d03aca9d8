"""A Triton backend called "cpu" that compiles nothing: with TRITON_INTERPRET=1 Triton interprets its kernels in numpy.

vLLM asks only whether such a backend is registered; without one its runner V2, and so DFlash2, refuses to start.
"""
