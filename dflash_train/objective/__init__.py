"""From hidden states to a loss and to counts that add up over micro-batches and ranks."""
