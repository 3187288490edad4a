"""Tabs of the page."""
