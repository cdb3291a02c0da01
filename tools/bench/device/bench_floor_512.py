"""The floor with reads of the size of the clients' buffers, and one write for the acknowledgements of each read."""

import bench_floor
import common


class Bench(bench_floor.Bench):
    """Only the size of a read differs."""

    READ = common.BUFFER
