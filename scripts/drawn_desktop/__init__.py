"""Makes the tiny model of images that the quickstart on drawn desktops begins with.

`model` is its tokenizer and its random weights. `lessons` teach it to read the screen, and to point at what a text
names.
"""
