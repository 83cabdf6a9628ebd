"""`python -m fencepost_operator`."""

from __future__ import annotations

import sys

from fencepost_operator.app import main

sys.exit(main())
