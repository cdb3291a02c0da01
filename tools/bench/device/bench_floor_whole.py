"""The floor for who knows beforehand how long a packet is: one read for each."""

import bench_floor


class Bench(bench_floor.Bench):
    """Only the number of reads differs."""

    HEAD = 0
