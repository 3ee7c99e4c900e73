"""The commands that train: a model (`train`), and gates that learn what to keep (`learn`)."""
