"""Layout and painting of pictures of fabrics; `draw` is the way in."""
