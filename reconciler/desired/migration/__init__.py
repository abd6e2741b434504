"""From older versions of Karpenter's API: NodePools, EC2NodeClasses, selectors."""
