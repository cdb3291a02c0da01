"""The hub: the server of FMQ (docs/hub.md). One process, asyncio, one SQLite file.

Each part takes what it uses, as arguments or as narrow protocols; imports point up in this table only.

==================  ===============================================================================================
``service``         the process: storage, listeners, start and stop
``broker``          puts the parts together: which handles which request, and what time brings
``login``           AUTH
``publish``         PUBLISH, PUBREL, REGISTER, UNREGISTER
``subscribe``       SUBSCRIBE, UNSUBSCRIBE
``consume``         CONSUME: members of consumer groups
``rpc``             remote procedure calls; ``topic_list``: the one that the hub provides
``broadcast``       PUBLISH to subscriptions without a group: live and retained messages, sessions that are kept
``groups``          consumer groups: lanes, their members, redelivery; ``assignment``: which member gets which queue
``wills``           will messages, and the hub's own message ids
``registry``        topics by name and by hash
``connection``      one connection: bytes into frames, frames into bytes, bounds; ``memory``: the bound on all
``clients``         clients and their sessions
``requests``        the fields of each request; ``frames``: the frames that the hub sends
``observer``        a program that embeds the hub, and answers that wait for it and for the storage
``turns``           work that is spread over turns of the event loop
``metrics``         counters and gauges, and the HTTP server for Prometheus
``config``          the TOML file
``access``          rules: who may do what; ``users``: names and hashes of passwords
``conditions``      which messages a subscription gets: tags and conditions
``storage``         everything that outlives the process
``topics``          topic names and filters, and indexes that find the one by the other
``errors``          refusals, and the reason codes they have
==================  ===============================================================================================
"""
