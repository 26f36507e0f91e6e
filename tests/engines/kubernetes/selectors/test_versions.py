import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.engines.kubernetes.selectors.versions import version_ranges, version_terms
from hetero_airflow.errors import RequestError
from hetero_airflow.matching.feasibility import version_obstacle

KEYS = ("major", "minor", "revision")
PARTS = st.integers(0, 3)
RELEASES = st.lists(PARTS, min_size=1, max_size=4).map(lambda numbers: ".".join(map(str, numbers)))
SPECIFIERS = st.one_of(
    st.tuples(st.sampled_from([">=", ">", "<=", "<", "==", "!="]), RELEASES).map("".join),
    st.tuples(st.sampled_from(["==", "!="]), RELEASES).map(lambda parts: f"{parts[0]}{parts[1]}.*"),
    st.lists(PARTS, min_size=2, max_size=4).map(lambda numbers: "~=" + ".".join(map(str, numbers))),
)


def holds(requirement, labels):
    """As the scheduler's node affinity compares (component-helpers/scheduling/corev1/nodeaffinity)."""
    key, operator, values = requirement
    if key not in labels:
        return operator in ("NotIn", "DoesNotExist")
    value = labels[key]
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator in ("Gt", "Lt"):
        return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    return operator == "Exists"


def suits(terms, labels):
    return any(all(holds(requirement, labels) for requirement in term) for term in terms)


@given(st.lists(SPECIFIERS, min_size=1, max_size=3), st.tuples(PARTS, PARTS, PARTS), st.integers(2, 3))
def test_labels_are_compared_as_versions_are(specifiers, numbers, length):
    specifier = ",".join(specifiers)
    version = ".".join(map(str, numbers[:length]))
    labels = {key: f"{number:02}" for key, number in zip(KEYS, numbers[:length], strict=False)}
    terms = ()  # where no version suits, and that is said
    with contextlib.suppress(RequestError):
        terms = version_terms("driver", specifier, KEYS[:length])
    assert suits(terms, labels) == (version_obstacle(version, specifier) is None)


@given(st.lists(SPECIFIERS, min_size=1, max_size=3), st.tuples(PARTS, PARTS, PARTS))
def test_ranges_hold_the_versions_of_the_specifier(specifiers, numbers):
    specifier = ",".join(specifiers)

    def inside(interval):
        held = (interval.low is None or numbers >= interval.low) and (interval.high is None or numbers < interval.high)
        return held != interval.is_negated

    held = all(map(inside, version_ranges("driver", specifier, 3)))
    assert held == (version_obstacle(".".join(map(str, numbers)), specifier) is None)


@pytest.mark.parametrize("specifier", [">=1.0rc1", "==1.0.post2", "==1.0+cu12", ">=1!2.0", "===1.0", "<2.0.dev1"])
def test_a_condition_that_labels_can_not_express_is_refused(specifier):
    with pytest.raises(RequestError, match="plain numbers"):
        version_terms("driver", specifier, KEYS)


def test_a_number_that_kubernetes_could_not_read_is_refused():
    with pytest.raises(RequestError, match=r"above 2\^31"):
        version_terms("driver", f">={10**19}", KEYS)


def test_no_value_is_negative():
    """-1 is no value of a label, and the API server refuses it."""
    for specifier in (">=0", "==0.0.0", "<1", ">0", "!=0.0.1"):
        for term in version_terms("driver", specifier, KEYS):
            assert all(not value.startswith("-") for requirement in term for value in requirement.values)


def test_a_range_of_drivers_is_a_few_terms():
    terms = version_terms("driver", ">=535.104.5,<560", KEYS)
    assert len(terms) == 3
    assert suits(terms, {"major": "535", "minor": "104", "revision": "05"})
    assert not suits(terms, {"major": "535", "minor": "104", "revision": "04"})
