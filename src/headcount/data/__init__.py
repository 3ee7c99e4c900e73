"""Examples: read from files, encoded, asked about, and kept apart. Knows no anatomy of models."""
