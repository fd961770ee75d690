"""Records that threads may use.

msgspec (0.22) works a class out at its first use, and two threads that do so at once crash the process.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import msgspec

_working_out = threading.Lock()
_ready: set[type[msgspec.Struct]] = set()


def make_ready() -> None:
    """Works out each of our records that has been defined by now, for who is about to use them in threads."""
    with _working_out:
        left = msgspec.Struct.__subclasses__()
        while left:
            kind = left.pop()
            left += kind.__subclasses__()
            if kind not in _ready and kind.__module__.startswith("alcove."):
                with suppress(TypeError, NameError):  # one that is only ever written
                    msgspec.json.Decoder(kind)
                _ready.add(kind)
