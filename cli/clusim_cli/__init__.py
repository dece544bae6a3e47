"""Command line of clusim: each command parses, calls one public function and prints."""
