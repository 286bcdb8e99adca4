"""`python -m pipeline.extract --run DIR [--attempt PATH] [--restart]`."""

import sys

from pipeline.extract.work import extract
from pipeline.stage import run_stage

if __name__ == "__main__":
    sys.exit(run_stage("extract", extract))
