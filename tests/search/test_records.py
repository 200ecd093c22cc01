"""Records with checksums: what is damaged is never taken for what was written."""

import io
import pickle

import pytest

from accelerando.search._records import (
    DamagedError,
    is_plain,
    plain_records,
    read_records,
    record,
    sole_record,
)

PAYLOADS = [b"the first", b"", b"x" * 300]
FILE = b"".join(map(record, PAYLOADS))
HEAD = 80  # bytes: 4 of the mark, 8 of the length, 32 and 4 of checksums, 32 of the signature
ENDS = [0, HEAD + 9, 2 * HEAD + 9, 3 * HEAD + 309]


def test_records_are_read_as_they_were_written():
    assert len(FILE) == ENDS[-1]
    file = io.BytesIO(FILE)
    assert list(read_records(file)) == PAYLOADS
    assert file.tell() == len(FILE)


@pytest.mark.parametrize("bit", [0x01, 0x80, 0xFF])
def test_every_damaged_byte_is_noticed(bit):
    """In a mark, a length, a checksum or a payload; also where a length becomes too large."""
    for position in range(len(FILE)):
        damaged = bytearray(FILE)
        damaged[position] ^= bit
        read = []
        with pytest.raises(DamagedError) as error:
            read.extend(read_records(io.BytesIO(damaged)))
        number = sum(position >= end for end in ENDS[1:])
        assert read == PAYLOADS[:number]
        assert error.value.start == ENDS[number]
        assert not is_plain(bytes(damaged))


def test_a_record_with_the_signature_of_another_key_is_refused():
    whole = record(b"state", b"mine")
    assert sole_record(whole, b"mine") == sole_record(whole, None) == b"state"
    for key in (b"", b"yours", b"mine" + bytes(1)):
        with pytest.raises(DamagedError) as error:
            sole_record(whole, key)
        assert error.value.foreign
    swapped = whole[:HEAD] + b"STATE"  # another payload under the same signature
    with pytest.raises(DamagedError) as error:
        sole_record(swapped, b"mine")
    assert not error.value.foreign
    header = record(b"STATE", b"yours")[: HEAD - 32]  # and with a checksum that fits
    with pytest.raises(DamagedError) as error:
        sole_record(header + whole[HEAD - 32 : HEAD] + b"STATE", b"mine")
    assert error.value.foreign


def test_a_file_that_was_cut_ends_with_its_last_whole_record():
    for size in range(len(FILE)):
        file = io.BytesIO(FILE[:size])
        number = sum(size >= end for end in ENDS[1:])
        assert list(read_records(file)) == PAYLOADS[:number]
        assert file.tell() == ENDS[number]


def test_a_record_that_is_missing_in_the_middle_is_noticed_by_its_neighbor():
    file = io.BytesIO(FILE[: ENDS[1] - 1] + FILE[ENDS[1] :])
    with pytest.raises(DamagedError):
        list(read_records(file))


def test_pickles_without_checksums_are_found_and_not_run():
    values = [("identity", {"a": 1}), ("params", 3, {"slope": 0.5}), ("end", 0, [1.0] * 100)]
    pickles = [pickle.dumps(value) for value in values]
    whole = b"".join(pickles)
    assert is_plain(whole)
    file = io.BytesIO(whole)
    assert list(plain_records(file)) == pickles
    assert file.tell() == len(whole)
    for size in range(len(whole)):
        file = io.BytesIO(whole[:size])
        number = sum(size >= len(b"".join(pickles[:n])) for n in (1, 2, 3))
        assert list(plain_records(file)) == pickles[:number]
        assert file.tell() == len(b"".join(pickles[:number]))
    start = len(pickles[0])
    with pytest.raises(DamagedError) as error:
        list(plain_records(io.BytesIO(whole[:start] + b"\xff" + whole[start + 1 :])))
    assert error.value.start == start


def test_versions_without_checksums_refuse_a_file_with_them():
    """They cut a file at the first EOFError or UnpicklingError, and raise any other error."""
    with pytest.raises(ValueError, match="unsupported pickle protocol: 255"):
        pickle.load(io.BytesIO(FILE))


def test_a_file_with_one_record_has_nothing_else():
    assert sole_record(record(b"state")) == b"state"
    assert sole_record(pickle.dumps("state"), key=None) == pickle.dumps("state")
    whole = record(b"state")
    for content in (
        b"",
        pickle.dumps("state"),
        whole[:-1],
        whole + b"x",
        whole + whole,
        whole[1:],
        b"garbage",
    ):
        with pytest.raises(DamagedError):
            sole_record(content)
