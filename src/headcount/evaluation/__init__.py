"""Models on tasks, with any number of plans masked, and the values of every example."""
