"""Invariants, used by `sprl verify` and by the tests alike.

golden.py        golden files, a line each       install.py     does this installation compute right
directory.py     lineage of a directory          gradient_map.py, two_processes.py   parts of install
lines.py         result lines and their runner   audit/         what is in a checkpoint
"""
