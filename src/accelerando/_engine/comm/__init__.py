"""Communication between ranks: gradients in every update, or parameters now and then."""
