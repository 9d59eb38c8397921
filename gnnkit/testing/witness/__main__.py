"""Runs the command of the package gnnkit-witness, by its earlier name."""

from gnnkit.errors import UserError
from gnnkit.testing.witness import witness

if __name__ == "__main__":
    try:
        raise SystemExit(witness("gnnkit_witness.__main__").main())
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
