"""Decode packets, frames and headers for display."""
