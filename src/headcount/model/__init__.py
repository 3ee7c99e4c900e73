"""Where the heads, MLPs and layers of a model are; how to mask, cut, save and load them. Knows no data."""
