"""The embedded default: this machine as the host, behind a real SSH server on the loopback. Only this room knows that.

Everything it makes goes over the wire as for any other host; it adds the server, a configuration and a file of prompts.
"""
