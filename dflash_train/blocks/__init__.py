"""What a block is: anchors, positions, visibility, weights and labels. Pure functions of tensors."""
