"""Layout and painting of pictures of fabrics; `clusim.fabric.draw` is the way in."""
