"""Texts and chats as rows of tokens, of one length."""
