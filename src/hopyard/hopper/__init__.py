"""The run loop and what it decides with: searcher, scheduler, backend, journal."""
