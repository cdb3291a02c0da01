"""The hub: the server of FMQ (docs/hub.md). One process, asyncio, one SQLite file.

===============  ====================================================================================
``service``      the process: listeners, and an end in good order
``connection``   bytes into frames, frames out, bounds
``broker``       who is connected, which frame goes where, what happens as time passes
``memory``       what is held for all connections, and who is cut off when that is too much
``clients``      what is known of a client
``login``        AUTH, sessions
``publish``      messages in, topics, wills
``wishes``       what SUBSCRIBE and CONSUME ask for
``subscribe``   SUBSCRIBE, UNSUBSCRIBE
``broadcast``    who is to have a message that was stored
``pushing``      PUBLISH to subscribers
``groups``       consumer groups: who has which queue, what is open
``consume``      CONSUME
``rpc``          RPC: who calls, who serves, what is under way
``topic_list``   what the hub answers itself when it is called: which topics there are
``wanted``       which messages a subscription gets
``frames``       the frames that the hub sends
``scrape``       metrics over HTTP
``conditions``   the condition of a subscription
``topics``       which subscriptions a topic matches, which topics a filter names
``groups``       who of a consumer group gets which queue
``storage``      everything that outlives the process; an answer waits until it is on the disk
``users``        names and hashes of passwords
``access``       who may do what
``config``       the TOML file
``metrics``      counters and gauges as Prometheus reads them
===============  ====================================================================================
"""
