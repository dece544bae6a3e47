"""Command line of clusim: parse, call one public function, print; nothing else."""
