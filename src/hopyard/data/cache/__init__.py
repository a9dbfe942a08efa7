"""The node cache: what is decoded on this machine, kept for other processes and later days."""
