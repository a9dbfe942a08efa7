"""From rows to a prepared dataset: Parquet that is also flat arrays, and its manifest."""
