"""Readers of graphs of other libraries, and of public data sets."""
