"""Geometry: the unit sphere, the probability simplex with its map to the sphere, and special functions of angles."""
