"""Training with Lightning.

`trainer` makes Lightning's trainer, with the `module` and a strategy from `ddp`.
Callbacks measure (`observer`), check (`loss`, `finite`), show (`display`) and save
(`resume`). `checkpoint` is the file format.
"""
