"""Readers and writers: images, maps, labels, arrays, clouds; atomic writes."""
