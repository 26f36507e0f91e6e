from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from pydantic import TypeAdapter

from hetero_airflow.discovery.sources import values
from hetero_airflow.model.device import DeviceWord
from hetero_airflow.units import MAX_BYTES

anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers()),
    st.dictionaries(st.just("value"), st.one_of(st.text(), st.integers(), st.floats())),
)  # fmt: skip


@given(anything)
def test_every_word_is_valid(value):
    word = values.to_word(value)
    assert TypeAdapter(DeviceWord).validate_python(word) == word


@given(st.text(min_size=100, max_size=1000))
def test_texts_are_bounded_printable_and_can_be_written(value):
    text = values.to_text(value, limit=50)
    assert text is None or (0 < len(text) <= 50 and text.isprintable() and text.encode())


@given(anything)
def test_numbers_stay_in_their_range(value):
    number, size, share = values.to_number(value), values.to_bytes(value, 1 << 20), values.to_share(value)
    count = values.to_count(value, limit=10)
    assert number is None or number - number == 0
    assert size is None or 0 <= size <= MAX_BYTES
    assert share is None or 0 <= share <= 1
    assert count is None or 0 <= count <= 10


@given(anything)
def test_every_version_is_a_public_pep_440_version(value):
    text = values.to_version(value)
    assert text is None or Version(text).local is None


@given(st.text(alphabet="0123456789,- \n"))
def test_kernel_lists_give_bounded_ids(value):
    ids = values.to_ids(value, limit=100)
    assert len(ids) <= 100
    assert all(0 <= number < 100 for number in ids)


def test_versions_that_tools_write_become_comparable():
    written = {
        "2.9.0+cu128": "2.9.0",
        "9.2.0-beta.2": "9.2.0-beta.2",
        "8.0.T6": "8.0",
        "26.0.rc2": "26.0.rc2",
        "6.4.1-83": "6.4.1",
        "Linuxversion6.14.0-24-generic(buildd@lcy02-amd64-010)": "6.14.0",
        "1.2.3.dev4": "1.2.3.dev4",
        "580.126.09": "580.126.09",
        "7": "7",
        "kernel 7": None,
        "no version": None,
        "": None,
    }
    assert {text: values.to_version(text) for text in written} == written


def test_marks_of_makers_are_no_part_of_a_word():
    assert values.to_word("Xeon(R) Platinum 8480+") == "xeon-platinum-8480+"
    assert values.to_word("Alveo™ U280") == "alveo-u280"


def test_a_pci_domain_of_eight_digits_is_shortened_only_where_nothing_is_lost():
    assert values.to_pci("00000001:3B:00.1") == "0001:3b:00.1"
    assert values.to_pci("03F8CFDD:00:00.0") == "3f8cfdd:00:00.0"
    assert values.to_pci("3b:00.0") == "0000:3b:00.0"
