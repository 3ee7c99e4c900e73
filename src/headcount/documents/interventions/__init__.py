"""Documents about models whose activations are changed while they run."""
