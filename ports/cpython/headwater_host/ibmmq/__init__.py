"""IBM MQ on a computer: headers as dictionaries (``structures``), constants by IBM's names (``CMQC``)."""
