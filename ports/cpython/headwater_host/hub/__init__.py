"""The hub: the server of FMQ (docs/hub.md). One process, asyncio, one SQLite file.

==============  ====================================================================================
``conditions``  the condition of a subscription
``topics``      which subscriptions a topic matches, which topics a filter names
``groups``      who of a consumer group gets which queue
``storage``     everything that outlives the process; an answer waits until it is on the disk
``users``       names and hashes of passwords
``access``      who may do what
``config``      the TOML file
``metrics``     counters and gauges as Prometheus reads them
==============  ====================================================================================
"""
