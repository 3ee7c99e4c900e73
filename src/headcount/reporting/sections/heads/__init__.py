"""Sections about heads by name."""
