"""Names that annotations use; MicroPython does not look at annotations."""

CircuitPythonSocketType = InterfaceType = SocketpoolModuleType = SocketType = SSLContextType = None
