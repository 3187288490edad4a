"""Coarse maps brought to the size of a picture, by this library and by others."""
