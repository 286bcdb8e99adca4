"""What runs on the host: agent, conductor, supervisor, services, recorder, transfer; subcommands of `-m remote.agent`.

Standard library only, Python >= 3.9; imports pipeline.rundir, pipeline.config, pipeline.budget and remote.protocol.
"""
