"""Tools of the project: what its tests, demo and benchmarks share. Run with the repository's root on the path."""
