"""The bytes of one telemetry message on the wire, by protocol: see `tools.bench.wire`."""
