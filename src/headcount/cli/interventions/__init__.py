"""Commands that change what models compute, and those that make data for them."""
