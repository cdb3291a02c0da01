"""What a board brings to headwater's core: sockets, serial lines, WiFi. Import what is used: ``headwater_board.tcp``."""
