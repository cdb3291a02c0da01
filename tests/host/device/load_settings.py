"""Load each file of a folder as settings, and print what came of it, a line of JSON each."""

import json
import os
import sys

from headwater_board.settings import SettingsError, load

folder = sys.argv[1]
for name in sorted(os.listdir(folder)):
    try:
        print(json.dumps([name, load(folder + "/" + name), None]))
    except SettingsError as error:
        print(json.dumps([name, None, str(error)]))
