"""The wire form of the kinds: models, generated CRDs and policies, and conversion to protocol values."""
