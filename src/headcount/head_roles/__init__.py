"""What each head looks at, and which role it earns by that (Voita et al. 2019, section 5; Clark et al. 2019)."""
