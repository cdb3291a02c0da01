"""Names that annotations use."""
