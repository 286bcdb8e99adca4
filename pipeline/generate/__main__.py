"""`python -m pipeline.generate --run DIR [--attempt PATH] [--restart]`."""

import sys

from pipeline.generate.work import generate
from pipeline.stage import run_stage

if __name__ == "__main__":
    sys.exit(run_stage("generate", generate))
