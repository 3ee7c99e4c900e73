"""The commands about what heads write and read: `attribute` and `weights`."""
