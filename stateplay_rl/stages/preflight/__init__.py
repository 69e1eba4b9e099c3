"""The lines of `sprl verify preflight`."""
