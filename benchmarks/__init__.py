"""Benchmarks: workloads, peers, and one runner. Start with `python -m benchmarks --help`."""
