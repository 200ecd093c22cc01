"""Experiments: settings and items, read from files."""

from accelerando._extras import require as _require

_require("crowd", "The web service")

from accelerando.crowd.experiment.files import Files as Files
from accelerando.crowd.experiment.files import Limits as Limits
from accelerando.crowd.experiment.files import read_upload as read_upload
from accelerando.crowd.experiment.items import Item as Item
from accelerando.crowd.experiment.load import Experiment as Experiment
from accelerando.crowd.experiment.load import load_experiment as load_experiment
from accelerando.crowd.experiment.load import make_experiment as make_experiment
from accelerando.crowd.experiment.media import Media as Media
from accelerando.crowd.experiment.problems import SettingsError as SettingsError
from accelerando.crowd.experiment.problems import SettingsProblem as SettingsProblem
from accelerando.crowd.experiment.settings import Settings as Settings
from accelerando.crowd.experiment.yaml_lines import read_yaml as read_yaml
