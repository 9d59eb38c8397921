from gnnkit_owned_seeds import OwnedSeeds

from gnnkit.config.keys import read
from gnnkit.testing import check_strategy


def test_owned_seeds_keep_the_promises_of_strategies() -> None:
    check_strategy(lambda: OwnedSeeds(batch_size=2))


def test_the_keys_are_those_of_the_extended_strategy() -> None:
    own, extended = (read("strategy", name) for name in ("owned_seeds", "individual_sample"))
    assert own.keys == extended.keys
    assert own.summary != extended.summary
