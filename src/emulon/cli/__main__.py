"""``python -m emulon.cli`` is ``emulon``."""

import sys

from emulon.cli import main

sys.exit(main())
