"""Where a path that a plan names lies on the host. Standard library only (Python >= 3.9); imports nothing of ours."""

from __future__ import annotations

import os
from pathlib import Path


def host_path(text: str, run: Path) -> Path:
    """A file or folder of a plan: `~` is the home of the user on the host, what is relative lies in the run's folder.

    Every reader of a plan asks here, so that a path means the same to the stages, the budget, the lineage and a
    service's command line. An unknown user's `~name` stays as it is.
    """
    return run / os.path.expanduser(text)
