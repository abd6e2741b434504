"""EC2 as moto simulates it behind the real boto3 client, with what moto lacks or gets wrong."""
