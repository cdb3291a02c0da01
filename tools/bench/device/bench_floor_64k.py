"""The floor with reads of 64 KB, for boards with spare memory."""

import bench_floor_whole


class Bench(bench_floor_whole.Bench):
    """The floor with another read size."""

    READ = 65536
