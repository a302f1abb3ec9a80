"""The detection table, the formats it is read from and written to, and matching it with truth."""
