"""The work on the host: the five stages, the bundled engine and the bundled verifier. Imports neither console nor remote."""
