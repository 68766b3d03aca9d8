"""Resumable checkpoints: torch.distributed.checkpoint folders with a manifest that is written last."""
