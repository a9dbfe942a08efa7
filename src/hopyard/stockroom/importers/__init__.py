"""Sources of data that enter a stockroom: formats of files, and datasets of other libraries."""
