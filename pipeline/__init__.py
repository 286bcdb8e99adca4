"""The work on the host: the five stages, the bundled engine and verifier. Imports neither console nor remote."""
