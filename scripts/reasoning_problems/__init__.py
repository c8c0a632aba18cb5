"""Problems with an answer that a fresh machine makes without a download: arithmetic, most of which needs the code tool.

The scripts beside this package import it as `reasoning_problems`, a configuration as `scripts.reasoning_problems`. So
its modules import one another relatively.
"""

GENERATED_REASONING = "scripts.reasoning_problems.domain:GeneratedReasoning"
"""`dataset.domain` for warm starts and loops on generated problems."""
