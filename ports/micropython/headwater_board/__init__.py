"""What a board brings to headwater's core: sockets and serial lines. Import what is used: ``headwater_board.tcp``."""
