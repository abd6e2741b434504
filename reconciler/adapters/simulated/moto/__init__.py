"""EC2 as moto imitates it behind the real boto3 client, with what moto lacks or gets wrong."""
