"""FMQ on the host (docs/protocols/fmq.md).

==========  ========================================================================
``values``  Python's values to bytes and back
``kinds``   durations, times, objects, maps for which Python has no value of its own
``hashes``  MurmurHash3: what topics and the fields of objects are named by
==========  ========================================================================
"""
