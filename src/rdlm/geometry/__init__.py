"""The geometry of the method: special functions of angles, the sphere, and the simplex that maps onto it."""
