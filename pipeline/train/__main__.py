"""`python -m pipeline.train --run DIR`."""

from __future__ import annotations

import sys

from pipeline.stage import run_stage
from pipeline.train.body import train

if __name__ == "__main__":
    sys.exit(run_stage("train", train))
