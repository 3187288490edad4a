"""Networks: those of the paper, and ours."""
