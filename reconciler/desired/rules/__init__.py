"""Rules about NodePools and EC2NodeClasses that a schema cannot express."""
