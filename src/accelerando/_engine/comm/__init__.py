"""How the ranks of a run agree: gradients in every update, or parameters now and then."""
