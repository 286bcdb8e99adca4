"""`python -m pipeline.deploy --run DIR`."""

from __future__ import annotations

import sys

from pipeline.deploy.body import deploy
from pipeline.stage import run_stage

if __name__ == "__main__":
    sys.exit(run_stage("deploy", deploy))
