"""Text that people wrote: shown safely, without secrets, and with a guess at what was meant."""
