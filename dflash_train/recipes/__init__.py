"""What is trained: one module a recipe."""
