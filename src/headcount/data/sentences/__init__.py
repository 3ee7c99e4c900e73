"""Sentences with their words, parses and translations, for looking at what heads do."""
