"""The draft: pure torch.nn. Knows nothing of losses, files, processes or precision."""
