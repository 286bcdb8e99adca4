"""Panels of the console: each is a pure function from values to lines, and a thin line-API widget around it."""
