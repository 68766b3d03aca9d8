"""`python -m dflash_train`: the same as `dflash-train`."""

from dflash_train.cli import main

main()
