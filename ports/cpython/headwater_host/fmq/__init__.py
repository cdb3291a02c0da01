"""FMQ's values in Python: ``values``, ``kinds``, ``hashes``, ``plain`` (JSON); ``usual`` decodes frequent frames."""
