"""Flags and run folders of commands on models that do not lie on one device."""
