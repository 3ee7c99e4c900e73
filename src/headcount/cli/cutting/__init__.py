"""The commands about what can be removed and about removing it: `inspect` and `cut`."""
