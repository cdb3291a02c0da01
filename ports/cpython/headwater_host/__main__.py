"""``python -m headwater_host`` is the command ``headwater``."""

import sys

from headwater_host.cli.main import main

sys.exit(main())
