"""The measured MQTT clients of the host, each in a process: `python -m tools.bench.hosts JOB`."""
