from gnnkit_template import Stripes

from gnnkit.testing import check_partitioner


def test_stripes_keep_the_promises_of_partitioners() -> None:
    check_partitioner(Stripes(width=3))
