"""Builds the components that go to a board: few compiled files instead of a file per module.

``table`` says which modules make up a file, and which files a component; ``program`` flattens all modules of the core
into one program, with constants folded; ``names`` shortens private names; ``build`` writes the files, ``romfs`` an
image of them. ``traceback`` translates a traceback of a board back to the sources.
"""
