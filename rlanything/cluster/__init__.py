"""A run as several processes on Ray.

By default Ray connects anew when a process calls it after `ray.shutdown`. That is switched off here, before any module
imports Ray: calls that are still under way when a run has left its cluster must fail.
"""

import os

os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
