"""What a daemon serves over HTTP: metrics and health."""
