"""``python -m clusim`` is the ``clusim`` command."""

from __future__ import annotations

from clusim_cli.main import main

if __name__ == "__main__":
    main()
