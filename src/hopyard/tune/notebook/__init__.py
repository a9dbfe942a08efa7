"""How runs and models look in notebooks."""
