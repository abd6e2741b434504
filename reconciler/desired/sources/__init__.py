"""What a fleet is rendered from: which sources it has, and what each of them refers to."""
