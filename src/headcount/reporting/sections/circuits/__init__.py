"""Sections about what heads compute: circuits, direct logit attribution, and what is read off the weights. No torch."""
