"""Lets pytest find the helpers beside the portable tests, which MicroPython finds because they are there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
