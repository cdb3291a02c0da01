"""IBM MQ on a computer: headers, rules of puts and gets, segments, reassembly, and the uplink to a queue manager.

The local queue manager is the distribution `headwater-mq` (package `headwater_mq`), which imports this package.
"""
