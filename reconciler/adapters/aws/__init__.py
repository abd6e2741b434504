"""The EC2 adapter over boto3; boto3 is imported only when a client is created."""
