"""FMQ, the compact queue protocol: docs/protocols/fmq.md."""
