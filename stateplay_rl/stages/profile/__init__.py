"""`sprl verify profile`: what this machine's ceilings are, and how near to them the work of a run comes."""
