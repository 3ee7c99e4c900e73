"""What helps people along: the groups of flags in `--help`, presets, the demo, and a look at the installation."""
