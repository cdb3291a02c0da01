"""The hub: the server of FMQ (docs/hub.md). One process, asyncio, one SQLite file.

==============  ====================================================================================
``conditions``  the condition of a subscription
==============  ====================================================================================
"""
