"""Looking at a stockroom: what is there, what differs, what is staged. Reads only; every result can be printed."""
