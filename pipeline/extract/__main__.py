"""`python -m pipeline.extract --run DIR [--attempt PATH] [--restart]`."""

import sys

from pipeline.stage import StageRun, run_stage


def body(stage: StageRun) -> None:
    """Imports the work only here, so that a Python that lacks something for it is told in a sentence."""
    from pipeline.extract.work import extract

    extract(stage)


if __name__ == "__main__":
    sys.exit(run_stage("extract", body))
