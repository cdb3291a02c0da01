"""The host's MQTT clients under measurement, each in a process of its own: ``python -m tools.bench.hosts JOB``."""
