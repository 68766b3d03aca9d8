"""Where links run: Slurm through submitit, or the local supervisor; one protocol (base.py) over both."""
