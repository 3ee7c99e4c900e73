"""Which sub-networks survive, and whether seeds and tasks agree on them (Prasanna et al. 2020)."""
