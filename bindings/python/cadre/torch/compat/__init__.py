"""Other packages' interfaces over cadre: change one import."""
