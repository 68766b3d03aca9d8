"""What the launcher knows of a trainer: how to check its config and which command a task runs (docs/contract.md)."""
