"""A simulated world for board programs: a clock that jumps, the stand-ins' radio, and a broker of headwater's own."""
