"""Counts words and memory of layouts, for job=plan and for keys that are `auto`."""
