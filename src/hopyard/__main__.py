"""``python -m hopyard`` is the ``hopyard`` command."""

from hopyard.cli import main

main()
