"""The categories of toy parts, from their shapes."""
