"""The Kubernetes API server as the store."""
