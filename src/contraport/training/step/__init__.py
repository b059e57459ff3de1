"""One step of training, without the loop around it."""
