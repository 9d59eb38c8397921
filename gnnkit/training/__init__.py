"""Training with Lightning.

`trainer` makes Lightning's trainer, with the `module` and a strategy from `ddp`.
`hooks` calls the hooks of a user's LightningModule. `data` is for trainers of users.
`step` has loss and optimiser, and needs no Lightning.
Callbacks measure (`observer`), check (`loss`, `finite`), show (`display`) and save
(`resume`). `checkpoint` is the file format.
"""
