"""From a planned launch to an instance: template, fleet request, and what EC2 answers."""
