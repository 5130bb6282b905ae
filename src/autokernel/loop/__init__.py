"""pick ▸ propose ▸ judge ▸ decide ▸ record, and the journal that survives a kill at any instant."""
