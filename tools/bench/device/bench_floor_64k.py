"""The floor with reads of 64 KB: what a board with memory to spare could do."""

import bench_floor_whole


class Bench(bench_floor_whole.Bench):
    """Only the size of a read differs."""

    READ = 65536
