"""Fleet repositories: folders, revisions and clones."""
