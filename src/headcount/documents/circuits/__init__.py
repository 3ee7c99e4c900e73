"""What heads write and read, as JSON: `attribute` and `circuits`. No torch."""
