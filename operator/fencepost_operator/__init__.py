"""The operator of Fencepost."""
