"""Preparation: writes the files that each rank reads, from a graph or a store."""
