"""Objects of Flux and Argo CD, and the rendering that each of them asks for."""
