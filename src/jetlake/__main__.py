"""`python -m jetlake`: the command `jetlake` of this interpreter's installation."""

import sys

from jetlake.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
