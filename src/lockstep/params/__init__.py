"""The typed experiment: one strict model of params.yaml, which keys decide a result, and fingerprints of them."""
