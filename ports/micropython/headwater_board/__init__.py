"""The port for boards: sockets, TLS, serial lines, networks. Import single modules, such as ``headwater_board.tcp``."""
