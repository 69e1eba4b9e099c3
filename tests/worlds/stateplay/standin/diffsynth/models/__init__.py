"""Part of the stand-in checkout."""
