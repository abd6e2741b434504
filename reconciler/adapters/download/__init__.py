"""Files over HTTPS, from the one host that the operator names."""
