#!/usr/bin/env python3
"""A script that knows nothing of bftd: it prints its steps, and goes on from a checkpoint of its own."""

import os
import time
from pathlib import Path

own = Path("own.checkpoint")
step = int(own.read_text()) if own.exists() else 0
while True:
    time.sleep(0.05)
    step += 1
    print(f"[train] step {step:,} of 1,000,000: loss {100 / step:.3f}", flush=True)
    if step % 10 == 0 and os.environ["RANK"] == "0":
        Path("own.checkpoint.new").write_text(str(step))
        os.replace("own.checkpoint.new", own)
