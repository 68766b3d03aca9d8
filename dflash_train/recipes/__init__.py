"""What is trained: a recipe turns batches into a loss. The engine knows nothing else of it."""
