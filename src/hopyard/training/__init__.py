"""What a worker runs: estimators' common part, units, metrics. Frameworks are in folders of their own."""
