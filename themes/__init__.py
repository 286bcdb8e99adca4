"""Themes and stylesheets of the console. May import Textual only inside functions."""
