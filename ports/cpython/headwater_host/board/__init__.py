"""MicroPython boards on serial ports: find them, install headwater, run programs, find faults."""
