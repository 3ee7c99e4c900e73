"""Which units go, under which budget or promise, and the smaller checkpoint that is left."""
