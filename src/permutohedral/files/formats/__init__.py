"""Readers and writers of image, map and label files."""
