"""Programs of a training step: operations of each stage, folding and the breakdown of time."""
