"""Training: a recipe, the loss, the loop, its state in one file, and new models to train."""
