"""Heads by the names that the field gives them: induction, previous token, successor, retrieval, and so on."""
