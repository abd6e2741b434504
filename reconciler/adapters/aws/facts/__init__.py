"""What AWS says about types, prices and commitments, and how long an answer is kept."""
