"""The asyncio client of FMQ."""
