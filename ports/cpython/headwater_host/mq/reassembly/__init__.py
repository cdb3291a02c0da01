"""Segments and groups put together: the rules, and what holds them for streams under bounds."""
