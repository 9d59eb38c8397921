"""Sums over in-edges and what stands around them, on the rows that a rank has."""
