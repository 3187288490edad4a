"""What the tabs of the page compute, without the page."""
