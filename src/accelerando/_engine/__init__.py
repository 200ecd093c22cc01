"""The training engine: state, loop, step, data, communicators.

The engine trains a :class:`torch.nn.Module`. It imports PyTorch, NumPy and SciPy. It does not
import skorch, scikit-learn or Dask: estimators and the cluster use the engine, not the other way
around.
"""
