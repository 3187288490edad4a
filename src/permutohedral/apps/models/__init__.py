"""Networks with shipped weights."""
