"""Training, export and decoding of DFlash and DFlash2 drafts.

GNU OpenMP's threads spin for a long while between parallel regions. Where another process wants the same cores (a data
worker, a second rank, a neighbour's job) that is ruinous: the demo's step took 5.8 s beside a busy neighbour, 0.5 s
with the limit below, which costs 5 % on idle cores (0.22 to 0.23 s). It must be said before torch is loaded; a user's
own OMP_WAIT_POLICY or GOMP_SPINCOUNT wins.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
