"""Layout of systems as boxes and lines, and its figure by matplotlib; SVG is written by the report."""
