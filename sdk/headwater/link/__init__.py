"""Serial link: reliable, ordered byte streams over a lossy line.

``headwater.link.link.Link`` is one end of a line, without I/O. ``headwater.link.pump`` runs it over a raw transport.
docs/serial-link.md specifies frames and guarantees.
"""
