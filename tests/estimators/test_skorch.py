"""skorch as the engine needs it: callbacks by event, private names, arrays of a Dataset."""

from skorch.callbacks import Callback, EpochTimer, PrintLog, ProgressBar

from accelerando.estimators._skorch import CallbacksByEvent, counting


class Ends(Callback):
    def on_batch_end(self, net, **kwargs):
        pass


def test_only_those_who_do_something_are_called():
    ends, timer, by_event = Ends(), EpochTimer(), CallbacksByEvent()
    callbacks = [("ends", ends), ("timer", timer)]
    assert by_event.at("on_batch_end", callbacks, 0) == [ends]
    assert by_event.at("on_epoch_end", callbacks, 0) == [timer]
    # Other callbacks are looked at anew.
    assert by_event.at("on_batch_end", [("timer", timer)], 0) == []


def test_a_table_is_made_only_for_somebody():
    log, own, by_event = PrintLog(), PrintLog(sink=len), CallbacksByEvent()
    callbacks = [("log", log), ("own", own)]
    assert by_event.at("on_epoch_end", callbacks, 0) == [own]
    assert by_event.at("on_epoch_end", callbacks, 1) == [log, own]


def test_a_progress_bar_counts_batches_by_itself():
    bar, timer = ProgressBar(), EpochTimer()
    assert counting(bar).batches_per_epoch == "count"
    assert bar.batches_per_epoch == "auto"  # the user's own is left alone
    assert counting(timer) is timer
    fixed = ProgressBar(batches_per_epoch=7)
    assert counting(fixed) is fixed
