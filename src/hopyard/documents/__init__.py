"""JSON documents of runs, datasets and stockrooms: the command line prints them, and the dashboard serves them."""
