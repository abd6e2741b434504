"""Wrong predictions as files: what was predicted from, what happened, and both again."""
