"""What makes up for units that go, without training: others change places, are scaled, or get other columns and biases."""
