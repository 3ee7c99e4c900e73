"""Models that do not lie on one device: device maps with offloading, tensor parallelism, fully sharded parameters."""
