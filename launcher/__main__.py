"""`python -m launcher`."""

from launcher.cli.main import main

main()
