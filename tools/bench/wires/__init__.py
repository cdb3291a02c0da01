"""What one telemetry message costs on the wire, protocol by protocol: see ``tools.bench.wire``."""
