from hetero_airflow.engines.kubernetes.unseen_pods import UnseenPods


def test_a_pod_that_was_made_is_not_absent():
    unseen = UnseenPods(None, None, now=lambda: 0.0)
    unseen.note_refused("l")
    assert unseen.is_absent("l", 0.0)
    unseen.note_made("l")
    assert not unseen.is_absent("l", 0.0)
