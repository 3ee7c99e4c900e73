"""Removing units for real: what can be cut and how, what goes along with a head, and the cut itself."""
