"""Benchmarks: ``./run bench``. What they measure, and how, is in ``docs/benchmarks.md``."""
