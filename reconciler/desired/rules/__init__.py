"""What a schema cannot say about NodePools and EC2NodeClasses."""
