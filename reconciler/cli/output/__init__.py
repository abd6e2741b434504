"""What commands print: lists, findings, explanations and progress."""
