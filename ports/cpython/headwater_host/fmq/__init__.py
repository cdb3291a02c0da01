"""FMQ on the host (docs/protocols/fmq.md).

=============  =====================================================================
``values``     Python's values to bytes and back
``kinds``      durations, times, objects, maps for which Python has no value of its own
``hashes``     MurmurHash3: what topics and the fields of objects are named by
``client``     the asyncio client, with ``requests`` (what it asks) and ``receiving``
``messages``   what it hands to a program
``options``    what it is told
``session``    the core's session with a computer's room, with ``fast``, ``ids`` and ``store``
``usual``      the frames that nearly all traffic is made of, for clients and the hub
``address``    where hubs are
=============  =====================================================================
"""
