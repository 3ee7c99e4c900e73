"""Pictures that stand alone: attention of heads on a text, circuits as graphs. No torch."""
