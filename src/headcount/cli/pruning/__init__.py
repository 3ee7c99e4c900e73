"""What `prune` and `tradeoff` share: what they print, and the front of a model."""
