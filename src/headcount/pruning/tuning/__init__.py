"""What stays is rearranged and scaled, without training (Kwon et al. 2022)."""
