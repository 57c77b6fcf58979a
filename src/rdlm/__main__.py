"""`python -m rdlm` is the command `rdlm`."""

from __future__ import annotations

import sys

from rdlm.cli.main import main

sys.exit(main())
