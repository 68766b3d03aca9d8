"""The half of a Triton backend that would compile."""

from triton.backends.compiler import BaseBackend

WHY = "this backend compiles nothing: set TRITON_INTERPRET=1"


class InterpretedBackend(BaseBackend):
    binary_ext = "none"

    @staticmethod
    def supports_target(target):
        return target.backend == "cpu"

    def hash(self):
        return "interpreted-cpu"

    def parse_options(self, options):
        raise RuntimeError(WHY)

    def add_stages(self, stages, options, *rest):
        raise RuntimeError(WHY)

    def load_dialects(self, context):
        """No dialects: nothing is compiled."""

    def get_module_map(self):
        return {}
