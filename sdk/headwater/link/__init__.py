"""The serial link: reliable, ordered byte streams over a line that drops, damages and invents bytes.

``headwater.link.link.Link`` is one end of a line, without I/O; ``headwater.link.pump`` moves its bytes to and from a
raw transport and has the transport of each stream. docs/serial-link.md has the layout of frames and the guarantees.
"""
