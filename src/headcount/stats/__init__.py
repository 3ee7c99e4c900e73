"""Is a difference real: metrics, intervals, paired tests, corrections, non-inferiority. No torch."""
