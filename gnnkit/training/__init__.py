"""Training with Lightning.

`trainer` makes Lightning's trainer, with the `module` and a strategy.
`hooks` calls the hooks of a user's LightningModule. `data` is for trainers of users.
`step` has loss and optimiser, and needs no Lightning.
Callbacks check losses (`finite`) and save (`saving`, `resume`). `checkpoint` is the
file format.
"""
