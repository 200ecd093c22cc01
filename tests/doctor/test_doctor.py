"""The options of the doctor."""

import pytest

from accelerando import cli


def test_the_defaults_are_this_machine_and_ten_seconds():
    arguments = cli.build_parser().parse_args(["doctor"])
    assert arguments.scheduler is None
    assert arguments.timeout == 10.0


def test_a_timeout_is_a_number(capsys):
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--timeout", "soon"])
    assert "invalid float value: 'soon'" in capsys.readouterr().err
