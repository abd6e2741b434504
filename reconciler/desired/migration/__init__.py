"""From the older versions of Karpenter's API to today's: NodePools, EC2NodeClasses, selectors."""
