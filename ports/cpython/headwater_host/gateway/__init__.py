"""The gateway: serial boards and broker topics into a capture log, acknowledged when it is on disk (docs/gateway.md).

``config`` says what to do, ``service`` does it: ``landing`` is the way into the log, ``broker`` and ``board`` are the
sources.
"""
