"""Run folders as one page that explains itself, and the card of a smaller checkpoint. No torch."""
