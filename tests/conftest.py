"""Before torch is imported: one thread a process. On tiny models two are no faster, and much more easily disturbed."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
