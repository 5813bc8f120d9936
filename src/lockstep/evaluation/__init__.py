"""What came out: held-out perplexity, reward and judge with intervals, divergence and diversity of the text."""
