from gnnkit_owned_seeds import OwnedSeeds

from gnnkit.testing import check_strategy


def test_owned_seeds_keep_the_promises_of_strategies() -> None:
    check_strategy(lambda: OwnedSeeds(batch_size=2))
