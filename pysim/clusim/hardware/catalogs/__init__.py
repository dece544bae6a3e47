"""Tables of all hardware objects, discovered in their packages."""
