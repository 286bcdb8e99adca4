"""Every performance claim as a command: `python -m benchmarks.NAME` prints a table, with `--json` one JSON object."""
