"""What a checkpoint is worth: decoding with and without the draft, on rows that it never saw."""
