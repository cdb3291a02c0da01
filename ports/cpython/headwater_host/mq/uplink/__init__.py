"""From a local queue to a queue manager, through IBM's own client."""
