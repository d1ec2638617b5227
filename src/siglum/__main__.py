"""`python -m siglum` is the command line."""

import sys

from siglum.cli.main import main

sys.exit(main())
