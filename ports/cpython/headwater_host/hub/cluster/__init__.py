"""Several hubs on one database: which one leads."""
