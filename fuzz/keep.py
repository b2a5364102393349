#!/usr/bin/env python3
"""keep.py FROM TO BYTES: puts inputs of FROM, of all sizes, BYTES in all at most, into TO in place of what is there."""

import hashlib
import pathlib
import sys

source, place, most = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
for old in place.iterdir():
    old.unlink()
# A replay is a test: it has to be quick, and a folder of thousands is nobody's friend.
MOST_FILES = 160
inputs = sorted((path.read_bytes() for path in source.iterdir()), key=lambda data: (len(data), data))
every = max(1, -(-len(inputs) // MOST_FILES))
total = 0
for data in inputs[::every]:
    total += len(data)
    if total > most:
        break
    (place / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
