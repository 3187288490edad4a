"""Picture files, and what is done with them."""
