"""Methods: one file each, behind one small interface."""
