"""The `launch` command: one verb a file. Words errors and prints; holds no logic of its own."""
