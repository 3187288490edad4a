"""Figures of the documentation, drawn from the tables that the operators themselves use."""
