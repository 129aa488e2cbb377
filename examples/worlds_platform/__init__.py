"""Two contexts that know nothing of each other, and the third place that joins them."""
