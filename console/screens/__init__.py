"""The screens of the console: the overview and its modals."""
