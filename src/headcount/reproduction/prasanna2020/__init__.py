"""Prasanna, Rogers and Rumshisky 2020, *When BERT Plays the Lottery, All Tickets Are Winning*: its experiments."""
