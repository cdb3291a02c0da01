"""The floor with known packet lengths: one read for each packet."""

import bench_floor


class Bench(bench_floor.Bench):
    """The floor with one read for each packet."""

    HEAD = 0
