"""Looking for what is wrong in a store, and mending what can be mended without losing a byte."""
