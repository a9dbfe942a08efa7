"""The dashboard: runs, data and versions in a browser, served from this machine and to this machine."""
