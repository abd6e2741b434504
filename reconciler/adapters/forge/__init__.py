"""Comments on pull requests: the APIs of GitHub and GitLab."""
