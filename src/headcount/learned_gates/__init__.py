"""Gates that learn which units to keep."""
