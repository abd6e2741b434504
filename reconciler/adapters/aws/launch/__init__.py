"""Launch an instance: template, fleet request, and EC2's response."""
