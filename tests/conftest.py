"""What holds for all tests."""

from __future__ import annotations

import signal

# Background jobs of a shell ignore Ctrl-C, and so would the commands under test.
signal.signal(signal.SIGINT, signal.default_int_handler)
