"""StockRoom: versions of data, models and experiments beside git."""
