"""Tools that tests, demo and benchmarks share. Run them with the repository's root on the path."""
