"""A run as several processes.

Ray is told here, before any module imports it, not to start anew by itself: what is still under way when a run has
left its cluster must fail, not connect again.
"""

import os

os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
