"""The node cache: data decoded on this machine, kept for other processes and later days."""
