"""Speed, shown as ratios measured in one run."""
