"""EC2 over boto3; boto3 is imported only when a client is made."""
