"""The exercises of the notebooks, one file for each."""
