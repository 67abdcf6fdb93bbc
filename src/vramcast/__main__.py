"""`python -m vramcast` is the command line."""

import sys

from vramcast.cli import console

sys.exit(console())
