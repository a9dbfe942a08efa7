"""How rows of files become rows of a dataset: what lies between Arrow and a batch."""
