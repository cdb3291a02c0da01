"""The floor with reads of the clients' buffer size, and one write for the acknowledgements of each read."""

import bench_floor_whole
import common


class Bench(bench_floor_whole.Bench):
    """The floor with another read size."""

    READ = common.BUFFER
