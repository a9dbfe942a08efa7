"""Where data comes from when it enters a stockroom: formats of files, and datasets of other libraries."""
