"""Coding problems that a fresh machine makes without a download.

The scripts beside this package import it as `coding_problems`, a configuration as `scripts.coding_problems`. So its
modules import one another relatively.
"""

GENERATED = "scripts.coding_problems.domain:GeneratedProblems"
"""`dataset.domain` for warm starts on generated problems."""
