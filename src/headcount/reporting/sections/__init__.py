"""The sections of a report, one module for each topic. No torch."""
