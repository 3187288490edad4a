"""Solids from point clouds."""
