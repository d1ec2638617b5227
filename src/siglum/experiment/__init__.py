"""The experiments of the paper: each is a set of units that train and measure, and what is assembled from them."""
