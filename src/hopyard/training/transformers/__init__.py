"""Models of Hugging Face: steps that train them, and their adapters."""
