"""What a target and its draft are worth, measured on held-out utterances."""
