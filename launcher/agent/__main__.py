"""Entry of `python <run>/links/agent`: the folder itself becomes the package `agent`."""

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from agent.cli import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
