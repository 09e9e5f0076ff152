"""Programs of a training step: the ops of each stage, their exchanges, folding and breakdown."""
