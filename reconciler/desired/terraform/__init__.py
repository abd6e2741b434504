"""The Kubernetes objects in Terraform: in its plan or state as JSON, and as text in its files."""
