"""Laptop side: the Textual app and the command line. Imports remote and the light modules of pipeline; never torch."""
