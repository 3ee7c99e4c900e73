"""Results as values and as JSON, the same for those that write run folders and those that read them. No torch."""
