"""Reassembly of segments and groups: the rules, and an assembler for streams with limits."""
