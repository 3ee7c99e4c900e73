"""One run on several machines: parts of its pieces that processes claim, workers on Ray, and who is at work. No torch."""
