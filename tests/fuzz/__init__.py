"""Random cases of everything that states a bound, as hypothesis strategies with Arb as the judge."""
