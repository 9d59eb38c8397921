"""A folder that the ranks of a run read: a manifest, and one shard for each part.

`manifest` says what the folder holds. `parts` reads as one rank does, its own part
alone. `join` puts the whole graph together again, for what only a whole graph can do.
"""
