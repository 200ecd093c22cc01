"""A fault at every step, and the success at the end."""

import pytest

from accelerando.testing import DiskFault, every_fault


def test_the_last_fault_does_not_happen(tmp_path):
    seen = []
    for fault in every_fault(lambda n: DiskFault(tmp_path, n)):
        try:
            with fault:
                (tmp_path / "a").write_bytes(b"1")
        except OSError:
            pass
        seen.append(fault.happened)
    assert seen == [True, True, False]


def test_a_fault_that_is_not_entered_is_an_error(tmp_path):
    faults = every_fault(lambda n: DiskFault(tmp_path, n))
    next(faults)
    with pytest.raises(RuntimeError, match="enter each fault"):
        next(faults)


def test_an_operation_without_end_is_an_error(tmp_path):
    def forever():
        for number, fault in enumerate(every_fault(lambda n: DiskFault(tmp_path, n), limit=3)):
            with pytest.raises(OSError, match="Input/output"), fault:
                for _ in range(number + 2):
                    (tmp_path / "a").unlink(missing_ok=True)

    with pytest.raises(RuntimeError, match="more than 3 steps"):
        forever()
