"""Stores: folders with a manifest and one shard per part.

`manifest` describes the folder. `parts` reads one rank's part. `join` restores the
complete graph from the parts.
"""
