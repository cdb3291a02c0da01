"""The floor with reads of the size of the clients' buffers, and one write for the acknowledgements of each read."""

import bench_floor_whole
import common


class Bench(bench_floor_whole.Bench):
    """Only the size of a read differs."""

    READ = common.BUFFER
