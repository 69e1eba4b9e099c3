"""Parts of the recipe of arena's small student."""
