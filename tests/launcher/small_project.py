"""Texts and commands that launcher tests share (not a conftest: every test folder has one of that name)."""

from __future__ import annotations

import subprocess
from pathlib import Path

FAKE_TRAINER = Path(__file__).parent / "fake_trainer"

SPEC = """\
name: demo
module: fake_trainer
config:
  max_steps: 6
  step_seconds: 0.01
  checkpoint:
    interval: 3
chain:
  links: 2
  walltime: "00:00:30"
"""

SITE = """\
name: here
backend: local
max_walltime: "01:00:00"
save_margin_seconds: 5
lock_stale_seconds: 10
accept_interval_seconds: 1
poll_seconds: 1
"""


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout
