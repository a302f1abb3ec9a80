"""Inputs that nobody should have to send, through the real commands."""
