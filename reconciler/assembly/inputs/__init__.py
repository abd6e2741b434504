"""What several commands need: their inputs, the recorded state, exit codes."""
