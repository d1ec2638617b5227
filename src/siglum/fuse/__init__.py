"""Stage 2a: frozen image and text features become one unit vector."""
