"""The stages' names, in their order. A module of its own, so that a supervisor needs nothing else of a plan."""

STAGES = ("generate", "extract", "vocab", "train", "deploy")
