"""Makes one module of those of the core that a program needs, smaller than they are together, for a board.

``program`` puts modules into one, ``reach`` drops what nobody uses, ``classes`` merges those that need not be apart,
``names`` shortens what nobody outside names; ``build`` does it in this order and says what remains importable.
``contents`` says what the bytes are.
"""
