"""What a driver calls to train sets of weights, wherever they are."""
