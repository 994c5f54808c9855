"""Random cases, as hypothesis strategies with Arb as the judge."""
