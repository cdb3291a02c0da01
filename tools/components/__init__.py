"""Makes one module of those of the core that a program needs, smaller than they are together, for a board.

``program`` puts modules into one, ``reach`` drops what nobody uses, ``classes`` merges those that need not be apart,
``settled`` puts values in the place of what always has them, and ``folded`` drops what can then never happen;
``names`` shortens what nobody outside names; ``build`` does it in this order and says what remains importable.
``contents`` says what the bytes are.
"""
