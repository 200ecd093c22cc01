"""What the estimator hands over, and what every rank receives."""

import cloudpickle

from accelerando._cluster.job import ModelBuilder, RankModel, RankSpec
from accelerando.sync import PeriodicAveraging
from tests._cluster.worker.plain import PlainBuilder, spec_of, validation_of


def test_every_rank_opens_its_own_copy_of_the_spec():
    spec = spec_of(strategy=PeriodicAveraging(3), validation=validation_of(), rank_timeout=7.0)
    sealed = cloudpickle.dumps(spec)
    first, second = cloudpickle.loads(sealed), cloudpickle.loads(sealed)
    assert isinstance(first, RankSpec)
    assert first.fit.strategy == PeriodicAveraging(3)
    assert (first.fit.rank_timeout, first.validation.n_batches) == (7.0, 3)
    assert first.builder is not second.builder
    assert first.micro_batch is not second.micro_batch


def test_a_builder_needs_no_estimator():
    """The protocols ask for nothing that a plain model does not have."""
    builder: ModelBuilder = PlainBuilder()
    built: RankModel = builder.build()
    methods = [name for name in vars(RankModel) if not name.startswith("_")]
    assert methods
    assert all(callable(getattr(built, name)) for name in methods)
    assert all(hasattr(built, name) for name in RankModel.__annotations__)
