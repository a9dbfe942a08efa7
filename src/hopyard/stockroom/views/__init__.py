"""Views: what shelves read from and write to, who may write, and what all shelves have in common."""
