"""What hardware there is: the objects that lie in packages of their own, found and joined to tables."""
