"""The document kit: sections, cells, pages and charts, and a painter for each format."""
