"""Benchmarks (`./run bench`); `docs/benchmarks.md` describes what they measure."""
