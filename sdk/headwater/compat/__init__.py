"""Headwater behind other libraries' faces, for programs that exist."""
