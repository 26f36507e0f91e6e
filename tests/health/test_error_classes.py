from __future__ import annotations

import pytest

from hetero_airflow.health.error_classes import XIDS, ErrorClass, classify_xid


@pytest.mark.parametrize("xid", [46, 48, 62, 64, 74, 79, 94, 95, 119, 120, 140, 143])
def test_xids_that_need_a_reset_are_fatal(xid):
    assert classify_xid(xid)[0] is ErrorClass.FATAL


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68])
def test_application_errors_never_count(xid):
    assert classify_xid(xid)[0] is ErrorClass.APPLICATION


@pytest.mark.parametrize("xid", [63, 92, 109, 149, 0, 9999])
def test_possible_hardware_errors_and_unknown_xids_count_by_rate(xid):
    assert classify_xid(xid)[0] is ErrorClass.COUNTED


def test_the_three_classes_share_no_xid():
    sizes = {wanted: sum(error_class is wanted for error_class, _ in XIDS.values()) for wanted in ErrorClass}
    assert sizes[ErrorClass.TASK] == 0
    assert sum(sizes.values()) == len(XIDS)
    from hetero_airflow.health import error_classes

    groups = [set(error_classes._FATAL), set(error_classes._COUNTED), set(error_classes._APPLICATION)]
    assert sum(map(len, groups)) == len(set.union(*groups))
