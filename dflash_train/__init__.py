"""Training, export and decoding of DFlash and DFlash2 drafts.

OpenMP's threads spin between parallel regions by default. Where another process wants the same cores (a data worker, a
second rank, a neighbour's job) that costs twentyfold: the demo's step took 5.8 s on two busy cores, 0.32 s with threads
that sleep. It must be said before torch is loaded, and a user's own setting wins.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
