"""Why a pod has no node, and what would have to change."""
