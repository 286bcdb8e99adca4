"""`python -m benchmarks.remote`: the remote layer's numbers, from a laptop and a host that are both this machine."""
