"""Tables of all hardware objects, which lie in packages of their own and are found there."""
