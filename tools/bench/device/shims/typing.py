"""Names that annotations use; MicroPython does not look at annotations."""

Dict = List = Optional = Tuple = Type = Union = None
