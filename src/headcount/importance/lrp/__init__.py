"""Layer-wise relevance propagation (Bach et al. 2015; on heads, Voita et al. 2019)."""
