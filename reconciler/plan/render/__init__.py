"""A plan as text, Markdown, HTML and Mermaid."""
