"""Michel, Levy and Neubig 2019, *Are Sixteen Heads Really Better than One?*: its experiments."""
