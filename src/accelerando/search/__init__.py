"""Hyper-parameter search for estimators with ``partial_fit``: Hyperband and its relatives."""

from accelerando.search._asha import AsyncHalvingSearchCV as AsyncHalvingSearchCV
from accelerando.search._hyperband import HyperbandSearchCV as HyperbandSearchCV
from accelerando.search._plan import hyperband_brackets as hyperband_brackets
from accelerando.search._plan import hyperband_inputs as hyperband_inputs
from accelerando.search._random import RandomIncrementalSearchCV as RandomIncrementalSearchCV
from accelerando.search._simulate import Replay as Replay
from accelerando.search._simulate import simulate as simulate
from accelerando.search._successive import SuccessiveHalvingSearchCV as SuccessiveHalvingSearchCV
